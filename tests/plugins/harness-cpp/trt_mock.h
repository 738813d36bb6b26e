// TensorRT's part: a logger, shape expressions, tensor descriptions and field collections.
#pragma once

#include "NvInferRuntime.h"

#include <memory>
#include <mutex>
#include <string>
#include <vector>

namespace harness
{
using namespace nvinfer1;

// Keeps the messages of each thread apart, as TensorRT's contract for a logger finder says.
class Logger final : public ILogger
{
public:
    void log(Severity severity, char const* message) noexcept override
    {
        if (severity <= Severity::kERROR)
        {
            last() = message;
        }
        else
        {
            std::lock_guard<std::mutex> const lock{mMutex};
            mOther.emplace_back(message);
        }
    }

    static std::string& last()
    {
        static thread_local std::string message;
        return message;
    }

    // Whether some message below an error held `part`.
    bool heard(std::string const& part)
    {
        std::lock_guard<std::mutex> const lock{mMutex};
        for (std::string const& message : mOther)
        {
            if (message.find(part) != std::string::npos)
            {
                return true;
            }
        }
        return false;
    }

private:
    std::mutex mMutex;
    std::vector<std::string> mOther;
};

class Finder final : public ILoggerFinder
{
public:
    explicit Finder(Logger& logger)
        : mLogger{logger}
    {
    }
    ILogger* findLogger() override
    {
        return &mLogger;
    }

private:
    Logger& mLogger;
};

class Dimension final : public IDimensionExpr
{
public:
    // A negative value stands for one known at run time only.
    explicit Dimension(int64_t value)
        : mImplementation{value}
    {
        mImpl = &mImplementation;
    }

private:
    struct Implementation final : apiv::VDimensionExpr
    {
        explicit Implementation(int64_t value)
            : value{value}
        {
        }
        bool isConstant() const override
        {
            return value >= 0;
        }
        int64_t getConstantValue() const override
        {
            return value;
        }
        bool isSizeTensor() const override
        {
            return false;
        }
        int64_t value;
    } mImplementation;
};

// Our plugins only pass shapes through: any use of the builder is an error that the caller checks.
class Expressions final : public IExprBuilder
{
public:
    Expressions()
    {
        mImpl = &mImplementation;
    }
    int uses() const
    {
        return mImplementation.uses;
    }

private:
    struct Implementation final : apiv::VExprBuilder
    {
        IDimensionExpr const* constant(int64_t) override
        {
            ++uses;
            return nullptr;
        }
        IDimensionExpr const* operation(DimensionOperation, IDimensionExpr const&, IDimensionExpr const&) override
        {
            ++uses;
            return nullptr;
        }
        IDimensionExpr const* declareSizeTensor(int32_t, IDimensionExpr const&, IDimensionExpr const&) override
        {
            ++uses;
            return nullptr;
        }
        int uses = 0;
    } mImplementation;
};

inline Dims dims(std::vector<int64_t> const& sizes)
{
    Dims result{};
    result.nbDims = static_cast<int32_t>(sizes.size());
    for (size_t i = 0; i < sizes.size(); ++i)
    {
        result.d[i] = sizes[i];
    }
    return result;
}

inline PluginTensorDesc desc(
    std::vector<int64_t> const& sizes, DataType type = DataType::kHALF, TensorFormat format = TensorFormat::kLINEAR)
{
    return PluginTensorDesc{dims(sizes), type, format, 1.0F};
}

inline DynamicPluginTensorDesc dynamic(std::vector<int64_t> const& sizes, DataType type = DataType::kHALF,
    TensorFormat format = TensorFormat::kLINEAR)
{
    Dims const all = dims(sizes);
    return DynamicPluginTensorDesc{PluginTensorDesc{all, type, format, 1.0F}, all, all, all};
}
} // namespace harness
