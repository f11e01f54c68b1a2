// Package act carries out the actions that plan decided on, by the protocol that package plan describes, and decides
// nothing. Each action on a node is preceded by reading its precondition once more, and a destructive one by pushing
// its intent: no push, no call. The answer is done, not done or unknown; unknown (a reply was lost) is settled by the
// next observation.
package act
