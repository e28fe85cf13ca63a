"""What an engine serves now: the model, its adapters, and what is to serve next."""

from __future__ import annotations

import msgspec

from prefixcache.config import EngineConfig
from prefixcache.engine.adapters import Adapters, LoadedAdapter
from prefixcache.engine.loading import LoadedModel
from prefixcache.engine.reloading import LoadAgain, NextModel, load_next
from prefixcache.engine.sequence import Sequence
from prefixcache.errors import AdapterError, EngineError
from prefixcache.index import Namespace, PrefixCache, Scope
from prefixcache.types import GenerationRequest


class Served:
    """One model and its adapters, changed between steps.

    Every load, of the model or of an adapter, has an id of its own that is part of the namespace
    of what is computed with it; what is replaced is invalidated as well, so that it goes first.
    """

    def __init__(
        self,
        loaded: LoadedModel,
        config: EngineConfig,
        cache: PrefixCache,
        load_again: LoadAgain | None,
    ) -> None:
        """Begin with `loaded` and the adapters of `config`. `load_again`: None: from memory."""
        self.info = loaded.info
        self.next: NextModel | None = None  # waits until `swap` may be called
        self._loaded = loaded
        self._config = config
        self._cache = cache
        self._load_again = load_again
        self._adapters = Adapters(loaded.model)
        self._digests = {loaded.info.load_id: loaded.digest or b""}  # by load
        self._adapter_digests: dict[str, bytes] = {}
        for name, folder in config.adapters.items():
            self.load_adapter(name, folder)

    def load_adapter(self, name: str, folder: str) -> None:
        """See `Engine.load_adapter`."""
        self._require_no_reload()
        if self._loaded.model.is_invariant:
            raise AdapterError(name, "invariant mode serves no adapters")
        self._adapters_changed(self._adapters.load(name, folder))

    def unload_adapter(self, name: str) -> None:
        """See `Engine.unload_adapter`."""
        self._require_no_reload()
        self._adapters_changed(self._adapters.unload(name))

    def adapter_of(self, request: GenerationRequest) -> LoadedAdapter | None:
        """Return what a request that comes now is computed with, beside the model."""
        return None if request.adapter is None else self._adapters.get(request.adapter)

    def namespace_of(self, request: GenerationRequest, adapter: LoadedAdapter | None) -> Namespace:
        """Return where a request with that adapter matches and stores."""
        return Namespace(
            model=self.info.load_id,
            adapter=None if adapter is None else adapter.info.load_id,
            kv_format=self.info.kv_format,
            tenant=request.tenant,
            salt=request.salt,
        )

    def model_digest(self, load_id: str) -> bytes:
        """Return the digest of a load that serves or has served; empty where none was made."""
        return self._digests[load_id]

    def adapter_digest(self, load_id: str) -> bytes | None:
        """Return the digest of an adapter's load; None: it was never served."""
        return self._adapter_digests.get(load_id)

    def load_next(self) -> None:
        """See `Engine.reload`; `next` is what it has loaded."""
        self._require_no_reload()
        if self._load_again is None:
            raise EngineError("the model was given in memory; there is nothing to load it from")
        self.next = load_next(self._load_again, self._config, self._loaded, self.info.adapters)

    def swap(self, following: NextModel) -> None:
        """Serve what was loaded; nothing of what was computed before is matched any more."""
        self._cache.invalidate(Scope.model(self.info.load_id))
        self._loaded, self._adapters = following.loaded, following.adapters
        self.info, self.next = following.loaded.info, None
        self._digests[self.info.load_id] = following.loaded.digest or b""
        self._note_adapters()

    def keep_up(self, sequence: Sequence) -> bool:
        """Have one that has not begun use what is served now; False: its adapter is gone."""
        if sequence.namespace.model == self.info.load_id:
            return True
        sequence.adapter = self.adapter_of(sequence.request)
        sequence.namespace = self.namespace_of(sequence.request, sequence.adapter)
        return (sequence.adapter is None) == (sequence.request.adapter is None)

    def _note_adapters(self) -> None:
        for info in self._adapters.infos:
            adapter = self._adapters.get(info.name)
            assert adapter is not None
            self._adapter_digests[info.load_id] = adapter.digest

    def _adapters_changed(self, gone: LoadedAdapter | None) -> None:
        self._note_adapters()
        if gone is not None:
            self._cache.invalidate(Scope.adapter(gone.info.load_id))
        self.info = msgspec.structs.replace(self.info, adapters=self._adapters.infos)

    def _require_no_reload(self) -> None:
        if self.next is not None:
            raise EngineError("the model is being reloaded; try again when that is done")
