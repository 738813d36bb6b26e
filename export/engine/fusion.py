"""Plugin or body: which way the parser took for every fused node, asserted after parsing.

TensorRT's parser takes our plugin where its creator is registered and the function body where it is not, and
says nothing. Nothing here was executed with plugin layers: they need the package `tensorrt` and a GPU.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tblock.contract import DOMAIN
from tblock.errors import ExportError
from tblock.export.engine.network import layers

PLUGIN_TYPES = ("PLUGIN", "PLUGIN_V2", "PLUGIN_V3")


def register(trt: Any, builder: Any, library: Path, versions: Mapping[str, str], title: str) -> None:
    """Load the plugin library into the registry that the parser will ask.

    Loading and finding the creators was executed with tensorrt_rtx, which has the registry but no plugin
    layers; layers and the package `tensorrt` were not executed.

    Args:
        trt: the package; never tensorrt_rtx before a parse: its parser ends the process at a plugin.
        builder: whose registry takes the library.
        library: of `tblock plugin build`.
        versions: op_type to the plugin version that the graph asks for.
        title: in front of messages.

    Raises:
        ExportError: the library does not load, or lacks a creator.
    """
    registry = (
        builder.get_plugin_registry()
        if hasattr(builder, "get_plugin_registry")
        else trt.get_plugin_registry()
    )
    try:
        handle = registry.load_library(str(library))
    except RuntimeError as error:
        raise ExportError(f"{title}: the plugin library {library} does not load ({error})") from error
    if handle is None:
        raise ExportError(
            f"{title}: the plugin library {library} does not load; build it with tblock plugin build"
        )
    has: dict[str, list[str]] = {}
    for creator in registry.all_creators:
        if creator.plugin_namespace == DOMAIN:
            has.setdefault(creator.name, []).append(creator.plugin_version)
    for name, version in versions.items():
        if version not in has.get(name, []):
            found = f"version {', '.join(has[name])}" if name in has else "none"
            raise ExportError(
                f"{title}: the graph asks for plugin {name} version {version}, {library} has {found}; "
                "build it again with tblock plugin build"
            )


def check_taken(network: Any, fusion: str, fused: Mapping[str, int], nodes: Sequence[str], title: str) -> int:
    """Find that the network has the plugin layers it must have, no more and no fewer.

    Args:
        network: parsed.
        fusion: `plugin` or `native`.
        fused: op_type to count, in the ONNX graph.
        nodes: names of the fused nodes in its main graph.
        title: in front of messages.

    Returns:
        The number of plugin layers.

    Raises:
        ExportError: a fused node went the other way; names it.
    """
    names = [layer.name for layer in layers(network) if layer.type.name in PLUGIN_TYPES]
    wanted = sum(fused.values()) if fusion == "plugin" else 0
    if len(names) == wanted:
        return wanted
    if fusion == "native":
        raise ExportError(
            f"{title}: --fusion native, but layer {names[0]} is a plugin; another library is registered"
        )
    lost = [node for node in nodes if node not in names]
    raise ExportError(
        f"{title}: --fusion plugin: {len(names)} plugin layers for {wanted} fused nodes; the parser took the "
        f"body of {lost[0] if lost else 'a node'}; check plugin_version, plugin_namespace and the library"
    )
