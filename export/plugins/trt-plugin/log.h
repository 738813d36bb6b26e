// Messages to the application's logger, or to stderr where there is none.
#pragma once

#include "NvInferRuntime.h"

#include <string>

namespace tblock
{
using Severity = nvinfer1::ILogger::Severity;

void setLoggerFinder(nvinfer1::ILoggerFinder* finder) noexcept;

// Never throws: callers are noexcept callbacks.
void log(Severity severity, std::string const& message) noexcept;
} // namespace tblock
