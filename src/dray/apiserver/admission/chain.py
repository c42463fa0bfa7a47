"""The admission chain: which plugins there are, in which order, and which of them are enabled."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from typing import Final, TypeAlias

from dray.api.document import GroupResource
from dray.apiserver.admission.order import PLUGIN_ORDER
from dray.apiserver.admission.plugin import (
    AdmissionAttributes,
    AdmissionPlugin,
    Operation,
    ReinvokingPlugin,
    Undo,
)
from dray.apiserver.authorization.node import NODES_GROUP

_Selector: TypeAlias = Callable[[GroupResource, str, Operation], tuple[AdmissionPlugin, ...]]
# Kinds of writes whose plugins are remembered; more than the resources, subresources and operations of a server.
_SELECTIONS_MAX: Final = 4096


class PluginNameError(ValueError):
    """The names given for enabled or disabled plugins do not make sense."""


def enabled_plugins(enable: Iterable[str] = (), disable: Iterable[str] = ()) -> frozenset[str]:
    """Return the names of the plugins that run; all of them do unless disabled.

    Raises `PluginNameError` for a name that is unknown, or that is both enabled and disabled.
    """
    enabled, disabled = frozenset(enable), frozenset(disable)
    for flag, names in (("enable-admission-plugins", enabled), ("disable-admission-plugins", disabled)):
        for name in sorted(names.difference(PLUGIN_ORDER)):
            raise PluginNameError(f'{flag} plugin "{name}" is unknown; known are {", ".join(PLUGIN_ORDER)}')
    if both := sorted(enabled & disabled):
        raise PluginNameError(f"{', '.join(both)} in enable-admission-plugins and disable-admission-plugins overlapped")
    return frozenset(PLUGIN_ORDER) - disabled


class AdmissionChain:
    """Runs the enabled plugins in order: first all that change objects, later all that only check."""

    def __init__(
        self,
        plugins: Iterable[AdmissionPlugin],
        enabled: Iterable[str] = PLUGIN_ORDER,
        always: Iterable[AdmissionPlugin] = (),
    ) -> None:
        wanted = frozenset(enabled)
        by_name = {plugin.name: plugin for plugin in plugins if plugin.name in wanted}
        # Those that cannot be disabled are steps of the registry upstream, after admission.
        self.plugins: Final = (*(by_name[name] for name in PLUGIN_ORDER if name in by_name), *always)
        mutating = [plugin for plugin in self.plugins if type(plugin).admit is not AdmissionPlugin.admit]
        webhooks = (plugin for plugin in self.plugins if isinstance(plugin, ReinvokingPlugin))
        self._webhooks: Final = next(webhooks, None)
        validating = [plugin for plugin in self.plugins if type(plugin).validate is not AdmissionPlugin.validate]
        self._mutating: Final = _selector(mutating)
        self._validating_of_nodes: Final = _selector(validating)
        self._validating: Final = _selector([plugin for plugin in validating if not plugin.validates_nodes_only])

    async def admit(self, attributes: AdmissionAttributes) -> None:
        """Run the mutating phase."""
        plugins = self._mutating(attributes.resource, attributes.subresource, attributes.operation)
        for plugin in plugins:
            await plugin.admit(attributes)
        webhooks = self._webhooks
        if webhooks is None or webhooks.configuration.is_empty or not webhooks.is_about(attributes):
            return
        first = await webhooks.first_round(attributes)
        if first.changed:
            # What webhooks changed may need the plugins, and those webhooks that ask for it, once more.
            for plugin in plugins:
                await plugin.admit(attributes)
            await webhooks.second_round(attributes, first)

    async def validate(self, attributes: AdmissionAttributes) -> Undo:
        """Run the validating phase; await the result if the write is not stored after all."""
        undos: list[Undo] = []
        select = self._validating_of_nodes if NODES_GROUP in attributes.user.groups else self._validating
        try:
            for plugin in select(attributes.resource, attributes.subresource, attributes.operation):
                if plugin.configuration.is_empty:
                    continue
                undo = await plugin.validate(attributes)
                if undo is not None:
                    undos.append(undo)
        except BaseException:
            await _undo_all(undos)
            raise
        return (lambda: _undo_all(undos)) if undos else nothing_to_undo


def _selector(plugins: Sequence[AdmissionPlugin]) -> _Selector:
    @lru_cache(maxsize=_SELECTIONS_MAX)
    def select(resource: GroupResource, subresource: str, operation: Operation) -> tuple[AdmissionPlugin, ...]:
        return tuple(plugin for plugin in plugins if plugin.handles(resource, subresource, operation))

    return select


async def _undo_all(undos: Sequence[Undo]) -> None:
    for undo in reversed(undos):
        await undo()


async def nothing_to_undo() -> None:
    """Do nothing."""
