#include "exports.h"
#include "contract.h"
#include "creator.h"
#include "kernels.h"
#include "log.h"

#include <array>
#include <cstring>
#include <iterator>
#include <utility>

#define TBLOCK_EXPORT extern "C" __attribute__((visibility("default")))

namespace
{
constexpr int32_t kOpCount = std::size(tblock::contract::kRows);
constexpr int32_t kDtypeCount = 3;
thread_local std::string tError;

template <size_t... kOps>
std::array<tblock::Creator, kOpCount>& creators(std::index_sequence<kOps...>)
{
    static std::array<tblock::Creator, kOpCount> all{tblock::Creator{kOps}...};
    return all;
}
} // namespace

TBLOCK_EXPORT nvinfer1::IPluginCreatorInterface* const* getCreators(int32_t& nbCreators) noexcept
{
    static std::array<nvinfer1::IPluginCreatorInterface*, kOpCount> const pointers = [] {
        std::array<nvinfer1::IPluginCreatorInterface*, kOpCount> filled{};
        int32_t op = 0;
        for (tblock::Creator& creator : creators(std::make_index_sequence<kOpCount>{}))
        {
            filled[op++] = &creator;
        }
        return filled;
    }();
    nbCreators = kOpCount;
    return pointers.data();
}

TBLOCK_EXPORT void setLoggerFinder(nvinfer1::ILoggerFinder* finder) noexcept
{
    tblock::setLoggerFinder(finder);
}

TBLOCK_EXPORT int32_t tblock_plugin_select(
    int32_t op, int32_t dtype, int64_t rows, int64_t width, int64_t alignment) noexcept
{
    return tblock::selectVariant(op, dtype, rows, width, alignment);
}

TBLOCK_EXPORT int32_t tblock_plugin_launch(int32_t op, int32_t dtype, void* const* tensors, int64_t rows, int64_t width,
    int64_t input_stride, void const* fields, void* stream) noexcept
try
{
    int64_t elements = 0;
    bool legal = op >= 0 && op < kOpCount && dtype >= 0 && dtype < kDtypeCount && tensors != nullptr && rows >= 0
        && input_stride >= width && !__builtin_mul_overflow(rows, input_stride, &elements);
    if (legal)
    {
        tblock::OpRow const& row = *tblock::contract::kRows[op];
        legal = (row.kind == tblock::OpKind::kElementwise || input_stride == width)
            && (row.fieldCount == 0 || fields != nullptr);
    }
    if (!legal)
    {
        tError = "op, dtype, tensors, rows, stride or fields out of range";
        return 1;
    }
    tError = tblock::checkWidth(op, width);
    tblock::Kernels const* const kernels = tError.empty() ? tblock::Kernels::current(op, tError) : nullptr;
    tblock::FieldValue values[tblock::kMaxFields] = {};
    if (fields != nullptr)
    {
        std::memcpy(values, fields, tblock::contract::kRows[op]->fieldCount * sizeof(values[0]));
    }
    tblock::Call const call{op, dtype, tensors, rows, width, input_stride, values};
    bool const launched
        = kernels != nullptr && kernels->launch(call, static_cast<tblock::CudaStream>(stream), tError);
    return launched ? 0 : 1;
}
catch (...)
{
    return 1;
}

TBLOCK_EXPORT char const* tblock_plugin_error() noexcept
{
    return tError.c_str();
}
