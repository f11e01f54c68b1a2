// Package journal keeps the inventory: what Ichor last did to whom, what is under way, and who may act.
//
// The inventory lies on the status branch (Store) and, as a copy, in the state folder. It carries a generation, an
// epoch and a MAC. Every write is a compare-and-swap push, so the branch is also the fence: a holder that was replaced
// can't push, and what is destructive is pushed as an intent before the call (Intend) and closed after it. No push, no
// call. See docs/adr/0001-one-writer.md.
//
// What becomes of an inventory that is not as it was left:
//
//	branch            copy              becomes
//	valid             none or older     the branch is taken
//	valid, older      valid, newer      the copy is put back (Restored)
//	valid             valid, and neither holds the other (two histories): Unknown
//	absent or empty   valid             the copy is put back (Restored)
//	absent            none              Fresh: a first run
//	no file on it     none              Unknown
//	broken, no MAC    valid             the copy is put back (Restored)
//	broken, no MAC    none or broken    Unknown
//	newer version     any               Refused
//	foreign root      any               Refused
//
// A first run can't be told from a repository whose status branch and state folder were both lost. That is safe for
// two reasons that lie elsewhere: a configured cluster that the inventory does not know is AdoptionPending, so nothing
// is written to it, and etcd is bootstrapped only when every approved control plane is seen waiting without etcd data.
package journal
