"""The way from one load of a model to the next, while requests run."""

from __future__ import annotations

from prefixcache.engine.answers import Answers
from prefixcache.engine.runner import Runner
from prefixcache.engine.scheduler import Scheduler
from prefixcache.engine.sequence import Sequence
from prefixcache.engine.served import Served
from prefixcache.types import FailureKind

_RELOADED = "the model was reloaded; send the request again"
_NO_ADAPTER = "its adapter is not loaded now"


class Swapping:
    """Serves a reloaded model once nobody is left who has begun with the one before."""

    def __init__(
        self, served: Served, scheduler: Scheduler, runner: Runner, answers: Answers
    ) -> None:
        self._served = served
        self._scheduler = scheduler
        self._runner = runner
        self._answers = answers

    def begin(self, *, drains: bool) -> None:
        """Load the model again and admit nobody new until it serves; see `Engine.reload`."""
        self._served.load_next()
        self._scheduler.admits_new = False
        for sequence in [] if drains else list(self._answers.in_flight.values()):
            if sequence.has_begun:
                self._answers.fail(sequence, FailureKind.CANCELLED, _RELOADED)

    def finish(self) -> None:
        """Serve what was loaded, if there is anything and all who had begun have ended."""
        following = self._served.next
        if following is None:
            return
        in_flight = list(self._answers.in_flight.values())
        if any(sequence.has_begun for sequence in in_flight):
            return
        self._served.swap(following)
        self._runner.use_model(following.loaded.model)
        self._scheduler.admits_new = True
        for sequence in in_flight:
            if sequence.published is None and not self._served.keep_up(sequence):
                self._answers.fail(sequence, FailureKind.INVALID, _NO_ADAPTER)

    def is_up_to_date(self, sequence: Sequence) -> bool:
        """Have one that is to queue use what is served now; False: it was refused."""
        if self._served.keep_up(sequence):
            return True
        sequence.has_ended = True
        self._answers.refuse(sequence.request.request_id, FailureKind.INVALID, _NO_ADAPTER)
        return False
