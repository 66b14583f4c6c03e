"""No two secure sums of a run have one name: the same name would mean the same masks."""

from __future__ import annotations

from secure_rounds import made

from potluck.core import stream
from potluck.engines import Dispatcher, Serial
from potluck.secure.settings import KEYS, REQUEST


class Heard(Serial):
    """Keeps the names of the sums that clients are asked to make keys for."""

    def run(self, envelopes):
        kept = list(envelopes)
        self.names = {each.task.config[REQUEST]["session"] for each in kept if each.task.verb == KEYS} or self.names
        return super().run(kept)

    names = frozenset()


def test_a_sum_of_a_round_its_retry_and_what_is_sent_before_scores_have_names_of_their_own():
    setup = made("fedavg", 3)
    context, engine, found = setup.context, Heard(setup.context), []
    run = Dispatcher(engine, context.method, context.zoo, secure=context.secure, session_label="run")
    state = context.method.init(context.zoo, stream(context.seed, "init"))
    for session in (run.open(0), run.open(0, 1), run.open(0, needed=True), run.open(1)):
        context.method.round(state, setup.view(0, session))
        session.close()
        (name,) = engine.names
        found.append(name)
    assert len(set(found)) == 4
