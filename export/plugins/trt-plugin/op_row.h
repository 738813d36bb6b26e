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

enum class FieldKind : int32_t
{
    kFloat, // float32
    kInt,   // int32
};

struct FieldRow
{
    char const* name;
    FieldKind kind;
    bool positive; // above 0; a float must be finite in any case
};

// The value of one field, as a kernel takes it.
union FieldValue
{
    float f;
    int32_t i;
};

enum class OpKind : int32_t
{
    kRowwise,     // sums over the last axis: one program holds whole rows
    kElementwise, // knows no rows: a contiguous tensor is one long row
};

struct OpRow
{
    char const* op;
    char const* pluginName;
    char const* version;
    OpKind kind;
    int64_t maxWidth; // of a row
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
