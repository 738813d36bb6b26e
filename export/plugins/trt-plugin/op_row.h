// The shape of a contract row in C++; the rows themselves are generated into contract.h.
#pragma once

#include <cstdint>

namespace tblock
{
enum class PortShape : int32_t
{
    kRows,   // [..., D]: the dims of input 0
    kVector, // [D]: the last dim of input 0
};

struct PortRow
{
    char const* name;
    PortShape shape;
};

struct FieldRow
{
    char const* name;
    bool positive;
};

struct OpRow
{
    char const* op;
    char const* pluginName;
    char const* version;
    PortRow const* inputs;
    int32_t inputCount;
    PortRow const* outputs;
    int32_t outputCount;
    FieldRow const* fields;
    int32_t fieldCount;
};

// No row has more fields or tensors than this.
inline constexpr int32_t kMaxFields = 4;
inline constexpr int32_t kMaxTensors = 8;
} // namespace tblock
