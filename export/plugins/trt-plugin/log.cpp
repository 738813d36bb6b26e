#include "log.h"

#include <atomic>
#include <cstdio>

namespace tblock
{
namespace
{
std::atomic<nvinfer1::ILoggerFinder*> gFinder{nullptr};
}

void setLoggerFinder(nvinfer1::ILoggerFinder* finder) noexcept
{
    gFinder.store(finder);
}

void log(Severity severity, std::string const& message) noexcept
{
    try
    {
        nvinfer1::ILoggerFinder* const finder = gFinder.load();
        nvinfer1::ILogger* const logger = finder != nullptr ? finder->findLogger() : nullptr;
        if (logger != nullptr)
        {
            logger->log(severity, message.c_str());
            return;
        }
    }
    catch (...)
    {
        // The application's finder threw; stderr below still gets the message.
    }
    if (severity <= Severity::kWARNING)
    {
        std::fprintf(stderr, "tblock: %s\n", message.c_str());
    }
}
} // namespace tblock
