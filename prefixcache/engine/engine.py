"""The engine: requests in, one step at a time, events out."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from functools import partial

from transformers import PreTrainedModel

from prefixcache.config import EngineConfig
from prefixcache.engine.answers import Answers
from prefixcache.engine.budget import StepBudget
from prefixcache.engine.compiling import CompilingRequests, GrammarCompiler, ModelGrammars
from prefixcache.engine.control import EngineControl
from prefixcache.engine.counters import Counters
from prefixcache.engine.deadlines import Deadlines, overdue_message
from prefixcache.engine.deferred import Cancels
from prefixcache.engine.idle import Idle
from prefixcache.engine.index_groups import IndexGroups
from prefixcache.engine.intake import Intake
from prefixcache.engine.loading import LoadedModel, load_model, prepare_model
from prefixcache.engine.publishing import Publishing
from prefixcache.engine.reloading import LoadAgain
from prefixcache.engine.runner import Runner
from prefixcache.engine.scheduler import Scheduler
from prefixcache.engine.sequence import Sequence
from prefixcache.engine.served import Served
from prefixcache.engine.shares import Share
from prefixcache.engine.speculation import Speculation
from prefixcache.engine.stalls import StallNotice
from prefixcache.engine.statistics import engine_stats
from prefixcache.engine.swapping import Swapping
from prefixcache.engine.tiers import open_host, open_lasting, open_tiers
from prefixcache.engine.window_room import WindowRoom
from prefixcache.errors import ConfigError, EngineError, RequestTooLargeError
from prefixcache.index import BlockCopy
from prefixcache.text import Tokenizer
from prefixcache.tiers import BlockTier
from prefixcache.types import (
    EngineStats,
    Event,
    FailureKind,
    GenerationRequest,
    ModelInfo,
    RequestId,
)

logger = logging.getLogger(__name__)

FIRST_STEP_TOKENS = {"cpu": 128}  # until the machine's speed is known
FIRST_STEP_TOKENS_ELSEWHERE = 2048
_LONGEST_PAUSE_SECONDS = 0.02  # until messages are looked at again


class Engine:
    """Runs requests against one model and its prefix cache.

    Nothing happens between calls: `step` does the work, and returns what it brought. One
    thread at a time may call it; `cancel` may come at any moment, from within another call too (a
    generator that the garbage collector closes does that), and then takes effect a little later.
    `control` is for its operator.
    """

    def __init__(
        self,
        loaded: LoadedModel,
        config: EngineConfig,
        *,
        clock: Callable[[], float] = time.perf_counter,  # seconds, never falling
        load_again: LoadAgain | None = None,  # for `reload`
        lasting: Mapping[str, BlockTier] | None = None,  # None: as `config` says
    ) -> None:
        self._store = loaded.store
        self._tokenizer = loaded.tokenizer
        groups = IndexGroups.of(loaded.store)
        self._whole_group = groups.whole
        host = open_host(config, loaded.store, groups)
        self.cache = groups.new_cache(config, self._copy_block, clock, host)
        device = loaded.model.device.type
        budget = StepBudget(
            step_seconds=config.step_seconds,
            max_tokens=config.max_step_tokens,
            first_tokens=FIRST_STEP_TOKENS.get(device, FIRST_STEP_TOKENS_ELSEWHERE),
        )
        windows = WindowRoom(
            self.cache, groups, self._store, most_running=config.max_running_requests
        )
        self._served = Served(loaded, config, self.cache, load_again)
        self._tiers = open_tiers(
            config,
            self.cache,
            loaded.store,
            groups,
            self._served,
            budget,
            host,
            open_lasting(config) if lasting is None else lasting,
            clock,
        )
        self._scheduler = Scheduler(self.cache, config, budget, windows, self._tiers)
        self._config = config
        self._clock = clock
        grammars = None if self._tokenizer is None else ModelGrammars(self._tokenizer, self.info)
        self._compiling = CompilingRequests(
            GrammarCompiler(
                grammars,
                max_kept=config.max_grammars,
                max_bytes=config.max_grammars_bytes,
            ),
            limit_seconds=config.grammar_seconds,
        )
        self._intake = Intake(
            self._served, config, loaded.tokenizer, self._scheduler, self._compiling
        )
        self._runner = Runner(loaded.model, loaded.store, budget, clock)
        self._counters = Counters()
        self._idle = Idle(self.cache, self._store, groups, config, self._counters, clock)
        self._speculation = Speculation(
            self.cache,
            windows,
            config,
            budget.costs,
            self._counters,
            vocab_size=self.info.vocab_size,
        )
        self._answers = Answers(self.cache, self._scheduler, self._tiers, self.info, self._counters)
        self._swapping = Swapping(self._served, self._scheduler, self._runner, self._answers)
        self._deadlines = Deadlines(clock, max_queue_seconds=config.max_queue_seconds)
        self._cancels = Cancels(self._cancel)
        self._stalls = StallNotice(self.cache, self._scheduler, clock, whole_group=groups.whole)
        self._publishing = Publishing(
            self.cache, self._served, config, self._scheduler, self._answers, self._deadlines
        )
        self.control = EngineControl(
            self.cache,
            self._served,
            self._scheduler.tenants,
            self._publishing,
            self._cancels,
            whole_group=groups.whole,
        )

    @classmethod
    def load(
        cls,
        config: EngineConfig,
        *,
        env: Mapping[str, str],
        report: Callable[[str], None] = logger.info,
    ) -> Engine:
        """Find, fetch if need be, load and check the model that `config` names.

        Args:
            config: what to load and how much to use.
            env: the process's environment: where models are kept.
            report: called with a line for people at each stage.

        Raises:
            ModelError: it cannot be found, read or served; the message says why.
            ConfigError: the KV memory cannot be had.
        """
        load_again = partial(load_model, env=env, report=logger.info)
        loaded = load_model(config, env=env, report=report)
        return cls(loaded, config, load_again=load_again)

    @classmethod
    def from_model(
        cls,
        model: PreTrainedModel,
        config: EngineConfig | None = None,
        *,
        tokenizer: Tokenizer | None = None,
    ) -> Engine:
        """Serve a transformers model that is already in memory; it is taken over.

        Its modules stay what they are unless `config.weights` says how to pack them.

        Without a tokenizer, prompts are token ids and there are no stop strings.

        Raises:
            ConfigError: `config` sets what only loading a model can honour.
            UnsupportedModelError: the model cannot be served; the message says why.
        """
        settings = config or EngineConfig()
        for setting in ("model", "dtype", "device", "threads"):
            if (value := getattr(settings, setting)) != getattr(EngineConfig(), setting):
                raise ConfigError(setting, value, "the model is in memory already; leave it out")
        loaded = prepare_model(
            model,
            settings,
            name="model",
            tokenizer=tokenizer,
            keeps_modules=settings.weights == "auto",
        )
        return cls(loaded, settings)

    @property
    def has_work(self) -> bool:
        """Whether `step` would bring anything."""
        requests = self._answers.in_flight or self._answers.has_news or self._compiling
        return bool(requests or self.is_reloading or self._publishing.has_work)

    @property
    def info(self) -> ModelInfo:
        """The model and its adapters, as they are served now."""
        return self._served.info

    @property
    def is_reloading(self) -> bool:
        """Whether a reloaded model waits for requests to end."""
        return self._served.next is not None

    @property
    def seconds_to_next_look(self) -> float | None:
        """How long an idle engine may wait for its next `step`, in seconds; None: for ever."""
        return self._idle.seconds_to_next_look

    def submit(self, request: GenerationRequest) -> None:
        """Queue a request. What is wrong with it comes back as a Failed event.

        Raises:
            EngineError: a request with this id is still in flight.
        """
        if request.request_id in self._answers.in_flight or request.request_id in self._compiling:
            raise EngineError(f"request id {request.request_id!r} is in use")
        with self._cancels.held():
            refusal = self._intake.refusal(request)
            if refusal is not None:
                self._answers.refuse(request.request_id, *refusal)
                return
            sequence = self._intake.sequence(request)
            self._deadlines.note(sequence)
            if request.sampling.grammar is None:
                self._queue(sequence)
            else:
                self._compiling.add(sequence, request.sampling.grammar, self._clock())

    def cancel(self, request_id: RequestId) -> None:
        """End a request: no token follows, its blocks are released. Unknown ids are ignored."""
        self._cancels(request_id)

    def load_adapter(self, name: str, folder: str) -> ModelInfo:
        """Load a LoRA adapter in peft's format, or load it again; return what is served now.

        Requests that are there go on with what they began with; those to come have the new
        weights and match nothing of the old ones.

        Raises:
            AdapterError: it cannot be served; an adapter that had the name before keeps it.
            ConfigError: `name` cannot be a name.

        Cost: the files are read and a few tokens fed; nothing else happens meanwhile.
        """
        with self._cancels.held():
            self._served.load_adapter(name, folder)
        return self.info

    def unload_adapter(self, name: str) -> ModelInfo:
        """Take an adapter away, and return what is served now. Requests that have it go on with it.

        Raises:
            AdapterError: none of that name is loaded.
        """
        with self._cancels.held():
            self._served.unload_adapter(name)
        return self.info

    def reload(self, *, drains: bool = True) -> None:
        """Load the model's weights again, and serve them when those who have begun have ended.

        Until then nobody new is admitted. Whoever waits is answered with the new weights, and
        nothing that the old ones have computed is matched. `is_reloading` tells when that is.

        Args:
            drains: those who have begun go on with the old weights to their end; else they fail.

        Raises:
            ModelError, AdapterError, ConfigError: the new weights, or an adapter, cannot be
                served; the old ones go on.
            EngineError: the model is not from a file, or it is being reloaded.

        Cost: the load, during which nothing else happens, and memory for both weights until then.
        """
        with self._cancels.held():
            self._swapping.begin(drains=drains)

    def step(self, poll: Callable[[], None] | None = None) -> list[Event]:
        """Run one batch through the model.

        Args:
            poll: called once the forward is through and before its tokens count, so that
                whoever was cancelled meanwhile gets none of them.

        Returns:
            What happened since the last call, in order.
        """
        with self._cancels.held():
            if self._config.eviction_policy == "ttl":
                self.cache.expire()
            for overdue in self._deadlines.overdue():
                self._expire(*overdue)
            self._swapping.finish()
            self._take_compiled()
            self._publishing.tend()
            self._tiers.begin_step()
            shares = self._schedule()
            if not shares and self._tiers.ahead.is_busy and not self._answers.has_news:
                self._tiers.pause(_LONGEST_PAUSE_SECONDS)  # nothing else is to be done
            if self.has_work or shares:
                self._idle.note_work()
            else:
                self._idle.work()
            if shares:
                self._counters.steps += 1
                outcomes = self._runner.run(shares)
                self._cancels.pause(poll or _nothing)
                self._answers.take(shares, outcomes)
                self._speculation.settle()
            self._publishing.settle(is_idle=not self._answers.in_flight)
            self._stalls.look()
        return self._answers.events()

    def stats(self) -> EngineStats:
        """Return counters since the start and gauges of now."""
        return engine_stats(
            self.cache, self._whole_group, self._scheduler, self._counters, self._tiers
        )

    def flush(self, seconds: float) -> bool:
        """Wait until lasting tiers have what was computed, or so long; return whether they do."""
        return self._tiers.flush(seconds)

    def close(self) -> None:
        """Write what waits to be written to lasting tiers, and let go of them: 2 s in all.

        The engine is not to be used after that. Without such tiers it need not be called.
        """
        self._tiers.close()

    def _cancel(self, request_id: RequestId) -> None:
        sequence = self._answers.in_flight.get(request_id)
        if self._compiling.drop(request_id):
            message = "the request was cancelled"
            self._answers.refuse(request_id, FailureKind.CANCELLED, message)
        elif sequence is not None:
            self._answers.fail(sequence, FailureKind.CANCELLED, "the request was cancelled")

    def _expire(self, sequence: Sequence, kind: FailureKind, limit_seconds: float) -> None:
        request_id = sequence.request.request_id
        if self._compiling.drop(request_id):
            self._answers.refuse(request_id, kind, overdue_message(kind, limit_seconds))
        else:
            self._answers.expire(sequence, kind, limit_seconds)

    def _schedule(self) -> list[Share]:
        """Return what the step computes; tell who was admitted, and who never can be."""
        schedule = self._scheduler.schedule()
        for sequence in schedule.admitted:
            self._answers.start(sequence)
        for sequence, error in schedule.failed:
            if isinstance(error, RequestTooLargeError):
                self._answers.fail(sequence, FailureKind.TOO_LARGE, str(error))
            else:
                name = sequence.request.request_id
                logger.error("request %s could not be scheduled", name, exc_info=error)
                self._answers.fail(sequence, FailureKind.INTERNAL, "it could not be scheduled")
        return self._speculation.with_drafts(schedule.shares)

    def _queue(self, sequence: Sequence) -> None:
        if self._swapping.is_up_to_date(sequence):
            self._publishing.need(sequence)
            self._answers.open(sequence)
            self._scheduler.waiting.add(sequence)
            self._tiers.read_ahead(sequence)

    def _take_compiled(self) -> None:
        """Queue the requests whose grammar is compiled, and end those whose cannot be."""
        if not self._compiling:
            return
        if not (self._answers.in_flight or self._answers.has_news):
            self._compiling.pause(_LONGEST_PAUSE_SECONDS)  # nothing else is to be done
        for compiled in self._compiling.take(self._clock()):
            if compiled.trouble is None:
                self._queue(compiled.sequence)
            else:
                request_id = compiled.sequence.request.request_id
                self._answers.refuse(request_id, FailureKind.GRAMMAR, compiled.trouble)

    def _copy_block(self, copy: BlockCopy) -> None:
        self._store.copy_block(copy.group, copy.source, copy.target, copy.n_tokens)


def _nothing() -> None:
    """Do nothing."""
