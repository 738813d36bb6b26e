#include "fields.h"

#include <cmath>
#include <cstring>

namespace tblock
{
namespace
{
using nvinfer1::PluginField;
using nvinfer1::PluginFieldType;

int32_t indexOf(OpRow const& row, char const* name)
{
    for (int32_t i = 0; i < row.fieldCount; ++i)
    {
        if (std::strcmp(row.fields[i].name, name) == 0)
        {
            return i;
        }
    }
    return -1;
}

std::string readOne(FieldRow const& row, PluginField const& field, FieldValue& value)
{
    bool const isFloat = row.kind == FieldKind::kFloat;
    if (field.type != typeOf(row))
    {
        return "field type " + std::to_string(static_cast<int32_t>(field.type)) + ": must be "
            + std::to_string(static_cast<int32_t>(typeOf(row))) + (isFloat ? " (float32)" : " (int32)");
    }
    if (field.length != 1)
    {
        return "length " + std::to_string(field.length) + ": must be 1";
    }
    if (field.data == nullptr)
    {
        return "no data";
    }
    std::memcpy(&value, field.data, sizeof(value)); // the application promises no alignment
    // The kernels flush denormals: a denormal eps would act as 0.
    if (isFloat && (row.positive ? !(std::isnormal(value.f) && value.f > 0.0F) : !std::isfinite(value.f)))
    {
        return std::to_string(value.f) + ": must be finite" + (row.positive ? " and above 0" : "");
    }
    if (!isFloat && row.positive && value.i <= 0)
    {
        return std::to_string(value.i) + ": must be above 0";
    }
    return {};
}
} // namespace

PluginFieldType typeOf(FieldRow const& row) noexcept
{
    return row.kind == FieldKind::kFloat ? PluginFieldType::kFLOAT32 : PluginFieldType::kINT32;
}

std::string FieldValues::read(OpRow const& row, nvinfer1::PluginFieldCollection const* fields)
{
    std::string const plugin = row.pluginName;
    bool seen[kMaxFields] = {};
    int32_t const count = fields != nullptr ? fields->nbFields : 0;
    if (count < 0 || (count > 0 && fields->fields == nullptr))
    {
        return plugin + ": broken field collection";
    }
    for (int32_t i = 0; i < count; ++i)
    {
        PluginField const& field = fields->fields[i];
        std::string const label = plugin + ": field " + (field.name != nullptr ? field.name : "(unnamed)");
        int32_t const index = field.name != nullptr ? indexOf(row, field.name) : -1;
        if (index < 0)
        {
            return label + ": unknown";
        }
        if (seen[index])
        {
            return label + ": given twice";
        }
        seen[index] = true;
        std::string const problem = readOne(row.fields[index], field, values[index]);
        if (!problem.empty())
        {
            return label + ": " + problem;
        }
    }
    for (int32_t i = 0; i < row.fieldCount; ++i)
    {
        if (!seen[i])
        {
            return plugin + ": field " + row.fields[i].name + ": missing";
        }
    }
    return {};
}

void FieldValues::write(OpRow const& row, PluginField* target) const noexcept
{
    for (int32_t i = 0; i < row.fieldCount; ++i)
    {
        target[i] = PluginField{row.fields[i].name, &values[i], typeOf(row.fields[i]), 1};
    }
}
} // namespace tblock
