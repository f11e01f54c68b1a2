package plan

// # The protocol between plan and act
//
// One pass is: observe what is due → Next → carry out Actions → observe what they touched → Next …
// The first thing that a pass does with a Decision is its DoObserve actions; when there were any, Next is called again
// with the new facts before anything else is done (a decision that still wants to act on stale facts asks for them
// and does not act).
//
// All Record kinds and CloseIntent of one decision are ONE inventory write, in the order given, done before the
// actions on nodes of the same decision. They are no acts on nodes: an inventory that can't be pushed now keeps them in
// the local copy. After actions on nodes the machines that they touched are read again before Next is called again. A
// write that is refused because another holder has a newer epoch (Fenced) ends the pass: nothing more is done to any
// node, not even what is idempotent. Actions on nodes of one decision are compatible: they may run at the same time.
//
// Act answers each action with done, not done or unknown, and plan never sees that answer: whatever must be
// remembered is in the inventory, the rest is seen by the next observation. "Push" below is the synchronous
// compare-and-swap write (no push, no call); "note" is a write that may stay
// local when the branch can't be reached; it is pushed as soon as it can.
//
// Machines that are read: the approved ones of the head, those of the inventory that have an open intent or a removal under
// way, those that leave, and (every interval) those that have left, for they may come back.
//
//	DoObserve    Reads Machine now. No inventory change. Closed by facts whose At is newer.
//
//	DoInstall    Precondition: Expect.Mode is maintenance; Expect.UUID and Expect.Fingerprint where set; the disk
//	             selection matches exactly one disk; the node's dry-run accepts.
//	             Push: Intent{install, Machine, UUID seen, Commit, Digest} and, in the same write, the machine's entry with
//	             Role, Endpoint, Hostname, Identity.UUID, SentDigest, SentCommit, SentAt, SentMode "no-reboot".
//	             Call: ApplyConfiguration over the maintenance API. Then: answered → the intent's Sent is true (note);
//	             refused by the node (it read and rejected it) → the intent is removed, Failure and FailedDigest are set
//	             (push); not sent or busy → the intent is removed; unknown → the intent stays as it is.
//	             Closed by: the machine seen configured (CloseIntent done); seen in maintenance mode again after
//	             RetryInterval, or four of them when it was sent (CloseIntent not-done, or failed when it was sent).
//
//	DoBootstrap  Precondition: every machine of Expect.EtcdEmptyOn read again just now: configured, etcd Preparing, no
//	             member, no members listed; Expect.UUID and NodeID are Machine's.
//	             Push: Intent{bootstrap, Machine, UUID} and BootstrapMachine, BootstrapUUID of the cluster in one write.
//	             Call: Bootstrap, with a deadline shorter than RetryInterval. Answered → Sent (note); "not available
//	             yet" and other definite refusals → intent removed and BootstrapMachine, BootstrapUUID cleared (push);
//	             AlreadyExists and unknown → the intent stays.
//	             Closed by: a member on Machine or another (CloseIntent done); Machine still empty after RetryInterval, or
//	             four when it was sent (CloseIntent not-done, which clears BootstrapMachine and BootstrapUUID; the next
//	             bootstrap is guarded as the first). An intent whose machine can't be seen stays, and nobody else is bootstrapped.
//
//	DoConfigure  Precondition: Expect (mode, identity, and OthersHealthy when it is a control plane), the node's own dry-run
//	             in the mode of Send accepts. Never when the node may be under a try (plan never asks for it then).
//	             Note, after the dry-run and before the call: SentDigest, SentCommit, SentAt, SentMode = Send; AttemptedCommit
//	             of the cluster. Where Disrupts is not empty or Send is try it is a push (no push, no call): what disrupts
//	             must be fenced, and a try must be known to whoever comes after.
//	             Call: ApplyConfiguration NO_REBOOT, STAGED or TRY with TryTimeout.
//	             Refused by the node for what it says → Failure and FailedDigest (note). Refused because it "can't be applied
//	             in immediate mode" (up to 1.13, SendNoReboot or SendTry) → AnsweredEffect "reboot" and AnsweredDigest
//	             (note), nothing sent. SendStaged to a node up to 1.13: a NO_REBOOT dry-run first; where that accepts
//	             and AnsweredDigest is not this one → AnsweredEffect "immediate" and AnsweredDigest (note), nothing
//	             sent. Definitely not taken (busy, refused, connection refused) → SentDigest, SentCommit, SentAt and
//	             SentMode are put back (note). Unknown → they stay.
//	             Closed by: the configuration seen equal, well for settle → RecordInForce.
//
//	DoConfirm    Sends the same configuration again with NO_REBOOT, without a dry-run (that would end the try in itself),
//	             after Expect was checked by reads alone. Note: SentMode "no-reboot"; SentAt is NOT changed.
//	             Closed by: Config.PersistentEqual. It is asked for whenever what runs is the wish and what is stored is not
//	             (Config.TryPending), also where the try is not known from the inventory.
//
//	DoForfeit    Precondition: Expect, OthersHealthy. Calls EtcdForfeitLeadership. No inventory change, no intent: it harms
//	             nothing to be repeated. Closed by another leader.
//
//	DoReboot     Precondition: Expect (BootID too), OthersHealthy. Push: Intent{reboot, Machine, UUID, Commit, BootID,
//	             Digest}. Call: Reboot. Answered → Sent (note); definitely not sent → intent removed; unknown → stays.
//	             Closed by: another boot ID on the same machine, configured (CloseIntent done); the same boot after
//	             RetryInterval when it was not sent (not-done), after RebootTimeout in any case (failed, with a
//	             RecordFailure).
//
//	RecordAdopt  Adopted = true; TalosVersion, KubernetesVersion, Contract, SecretsFingerprint, EncryptedFingerprint
//	             from the Desired of the same Input (where they are empty in the inventory). It comes with
//	             RecordIdentity for each machine that is known by then: one write.
//	RecordIdentity  Identity: its non-empty fields replace the pinned ones; Role, Endpoint from the Desired, Hostname
//	             from it when the entry is new. Joined → JoinedAt = now where it is zero.
//	RecordInForce   InForceDigest = Digest, InForceCommit = Commit, Hostname from the Desired; Failure, FailedDigest, AnsweredDigest,
//	             AnsweredEffect cleared.
//	RecordApplied   AppliedCommit = AttemptedCommit = Commit; TalosVersion, KubernetesVersion, Contract, SecretsFingerprint,
//	             EncryptedFingerprint from the Desired (renewed, where it says so); InForceCommit = Commit of every machine whose InForceDigest is its
//	             Desired digest (so that the baseline is one commit's render).
//	RecordFailure   Failure = Message, FailedDigest = Digest.
//	RecordRebootPending  RebootPending = Paths, RebootPendingBootID = Expect.BootID ("" when Paths is empty). A push: where
//	             it can't be pushed it is not kept locally either, so that plan asks again before it sends anything
//	             (a node from 1.14 on never says that it waits for a reboot, so this must not be forgotten).
//	RecordNodeReady      NodeReadySeen = true.
//	CloseIntent  Removes the intent IntentID (push: it is an outcome). Outcome done of a reboot clears RebootPending and
//	             RebootPendingBootID; not-done of a bootstrap clears BootstrapMachine and BootstrapUUID; failed writes
//	             Failure = Message and FailedDigest = Digest too.
//
// # Drains
//
// Acts on Kubernetes (Action.Kind.OnKubernetes) go to the API servers of the cluster's control planes, by the machine's Node
// (Action.Node, NodeUID: another UID is another node, nothing is done). Their precondition is that the Node is still that
// one; Expect is not asked of the machine. None waits: each is one round of short calls, and what came of it is seen by
// the next look (KubeFact). They are not destructive acts of the journal: nothing is pushed before them.
//
//	RecordDrain  Drain = Action.Drain (note). It is written before the cordon, and taken away (nil) when the drain is over
//	             or given up.
//	DoCordon     Sets spec.unschedulable and the annotation ichor.maesh.dev/cordoned (its value is the time). A node that is
//	             unschedulable already, and not by Ichor, is left as it is: no annotation. Closed by CordonedByIchor or
//	             Unschedulable.
//	DoEvict      Asks once for the eviction of each pod that kubectl drain would move (DaemonSets' and mirror pods stay,
//	             emptyDir data goes, pods without a controller go too). A PodDisruptionBudget's refusal is no failure: it
//	             is seen in Blocked. Closed by Pods empty (not nil).
//	DoUncordon   Makes it schedulable and takes the annotation away, where the annotation is there. Closed by neither.
//	DoEvacuate   Creates the Job of rollout.evacuate for the node; one that is there is left. Closed by Evacuation.
//	DoDeleteNode Deletes the Node with UID precondition. Closed by Node "".
//
// # Removals
//
//	RecordRemoval    Removal = Action.Removal (push: it is the journal of what can't be taken back; where it can't be pushed it
//	                 is not kept). RecordRemoved: the same, and by Removal.Kind: remove → RemovedAt = now; replace, reset →
//	                 the entry forgets whom it pinned and what was sent, in force, failed, pending (as if it had never been
//	                 brought up; Role, Endpoint, Hostname stay; of the identity the UUID stays for reset, nothing for replace).
//	RecordRenamed    Machines[Machine] = Machines[From], without From (push).
//	RecordOperation  Inventory.Operations[OperationKey] = {OperationState, Message, now} (push).
//	RecordKubernetesSeen  KubernetesSeen = true (note).
//
//	DoRemoveMember   Precondition: Expect (Dead, or the machine's own identity when it is live), OthersHealthy, MemberListed;
//	                 Via is one of OthersHealthy. Push: Intent{remove-member, Machine, UUID, Commit, Detail{member, via}}. Call:
//	                 EtcdRemoveMemberByID(MemberID) at Via. Answered, or NotFound → Sent (note); a definite refusal (unhealthy
//	                 cluster, not enough started members) → intent removed; unknown → stays. Closed by: no healthy member
//	                 lists it any more (done); listed still after RetryInterval, four of them when it was sent (not-done).
//	DoReset          Precondition: Expect (mode, identity), OthersHealthy with MemberGone where it was a member. Push:
//	                 Intent{reset, Machine, UUID, Commit, BootID, Detail{wipe, after}}. Call: Reset with graceful false; wipe
//	                 system: the volumes STATE and EPHEMERAL and what else the node's version keeps apart of them; all: the
//	                 whole system disk too; reboot as After says. Answered → Sent (note); definitely not sent → removed; unknown
//	                 → stays. Closed by: the machine seen in maintenance mode (done), or silent for RebootTimeout (done, said
//	                 to be so; with After shutdown already after Grace); the same boot after RetryInterval when it was not
//	                 sent (not-done), after RebootTimeout in any case (failed); configured in another boot (failed).
//	DoForfeit        as above, also for a machine that leaves.
//
// Expect.Dead: act reads the machine again, from Ichor and through a sibling, and asks Dead(facts): nothing but what
// proved it dead may have changed.
//
// Expect: an empty field is not checked. NodeID, UUID, MemberID, BootID, Fingerprint: read again and equal. EtcdDown:
// the machine itself is seen to run no member still. OthersHealthy: each passes SeenWell in a read made for this call (HealthyMember alone where SkipKubernetes is set).
//
// WellSince and SeenWell: observe keeps, per machine, since when SeenWell(facts, role, nodeReadySeen) was true in each
// read without a break; another BootID is a break. nodeReadySeen is the inventory's NodeReadySeen (false where there is no entry).
