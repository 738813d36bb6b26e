"""Loads the plugin library into TensorRT-RTX's registry, and parses ONNX files with it; a child of the tests.

TensorRT-RTX ends the process once it created a plugin (it has no plugin layers), so the parent reads the log.
Arguments: the library, then any ONNX file. Prints one JSON line of creators, then the parser's log.
"""

import json
import sys

import tensorrt_rtx as trt


class _Printer(trt.ILogger):
    def __init__(self) -> None:
        trt.ILogger.__init__(self)

    def log(self, severity: trt.ILogger.Severity, message: str) -> None:
        print(f"{severity.name}: {message}", flush=True)


def main(plugin_library: str, *models: str) -> None:
    """See the module."""
    logger = _Printer()
    registry = trt.get_plugin_registry()
    registry.load_library(plugin_library)
    ours = [c for c in registry.all_creators if c.plugin_namespace == "tblock"]
    print(json.dumps([[c.name, c.plugin_version, [f.name for f in c.field_names]] for c in ours]), flush=True)
    for path in models:
        network = trt.Builder(logger).create_network()
        parser = trt.OnnxParser(network, logger)
        with open(path, "rb") as file:
            print("parsed:", parser.parse(file.read()), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
