"""What a broker of a group says when the controllers do not let it have the role that it should."""

#: Id, group, epoch.
STARTED_AGAIN = (
    "the controllers say that broker %d of group %s, which is this one, is the master of epoch %d, "
    "but this process did not begin that epoch, or has left it. It waits until they have found "
    "that it was gone, and elected a master for a new epoch"
)
#: Id, group, what the controllers say.
REPLACED = (
    "this broker is not broker %d of group %s any more, and answers nobody until it is again: %s. "
    "Two brokers have copies of one store, or it has moved: see which of them has what was "
    "acknowledged, stop the other one, and delete brokerIdentity in its store if it shall be a "
    "broker of its own. This one has its id again when the one that has it now is gone; it is not "
    "elected by itself then if that one was the master of a later epoch"
)
#: Id, group, address.
COPY = (
    "this broker is a copy of broker %d of group %s, which is at %s and was alive while this one "
    "asked for its id: it answers nobody, and does not ask again. Stop it. If it shall be a broker "
    "of its own, delete brokerIdentity in its store and start it; if it shall take the place of "
    "the other one, which is gone for good and had written nothing since, start it as it is"
)
#: Id, group, what the controllers say.
ID_REFUSED = "this broker is not broker %d of group %s, and answers nobody: %s"
#: Group.
LEARNER_WAITS = (
    "group %s has no master; this broker is a learner (asyncLearner), and waits until another one "
    "is the master"
)
#: Epoch, group.
LEARNER_ELECTED = (
    "the controllers have elected this broker for epoch %d of group %s, but it is a learner "
    "(asyncLearner): it is no master, and silent until they have elected another one. If it is the "
    "last one of the sync state set (mqadmin getSyncStateSet), start it without that setting"
)
#: Group, why.
NO_MASTER = (
    "group %s has no master, and none of its brokers that are alive may be one: %s. Start those "
    "that had everything last (mqadmin getSyncStateSet)"
)
#: Epoch, group, why, what this broker does.
OLD_COPY = (
    "the controllers say that epoch %d of group %s is the last one, but %s: they have an old copy "
    "of their data, or those of another group. This broker %s until they know a later epoch "
    "(mqadmin electMaster)"
)
