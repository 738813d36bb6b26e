"""TensorRT and TensorRT-RTX engines from an ONNX file.

Reading order: `builder` (what callers use), `options`, `package` (how the packages differ), `onnx`,
`profiles`, `child` (the process with TensorRT), `worker`, `build`, `report`.
"""
