// The cases of export/plugins/case_file.py: inputs and float64 outputs, for any row of the contract.
#pragma once

#include "contract.h"
#include "float_types.h"

#include <cstdint>
#include <fstream>
#include <iterator>
#include <stdexcept>
#include <string>
#include <vector>

namespace harness
{
struct Case
{
    int32_t op;
    int32_t dtype;
    int64_t rows;
    int64_t width;
    bool packed; // the inputs are parts of one tensor, the only one in `inputs`
    std::vector<tblock::FieldValue> fields;
    std::vector<std::vector<char>> inputs; // in the dtype
    std::vector<std::vector<double>> outputs;

    tblock::OpRow const& row() const
    {
        return *tblock::contract::kRows[op];
    }
    FloatType const& type() const
    {
        return kFloatTypes[dtype];
    }
    bool isVector(int32_t input) const
    {
        return row().inputs[input].shape == tblock::PortShape::kVector;
    }
    std::string label() const
    {
        return std::string{row().pluginName} + " " + type().name + " " + std::to_string(rows) + "x"
            + std::to_string(width) + (packed ? " packed" : "");
    }
};

inline std::vector<Case> readCases(std::string const& path)
{
    std::ifstream file{path, std::ios::binary};
    std::vector<Case> cases;
    int64_t head[5];
    while (file.read(reinterpret_cast<char*>(head), sizeof(head)))
    {
        int64_t const rowCount = std::size(tblock::contract::kRows);
        if (head[0] < 0 || head[0] >= rowCount || head[1] < 0 || head[1] > 2)
        {
            throw std::runtime_error{path + ": not a file of cases"};
        }
        Case c{static_cast<int32_t>(head[0]), static_cast<int32_t>(head[1]), head[2], head[3], head[4] != 0, {}, {}, {}};
        int64_t const elements = c.rows * c.width;
        c.fields.resize(c.row().fieldCount);
        file.read(reinterpret_cast<char*>(c.fields.data()), c.row().fieldCount * sizeof(tblock::FieldValue));
        for (int32_t i = 0; i < (c.packed ? 1 : c.row().inputCount); ++i)
        {
            int64_t const count = c.packed ? elements * c.row().inputCount : c.isVector(i) ? c.width : elements;
            c.inputs.emplace_back(count * c.type().bytes);
            file.read(c.inputs.back().data(), c.inputs.back().size());
        }
        for (int32_t i = 0; i < c.row().outputCount; ++i)
        {
            c.outputs.emplace_back(elements);
            file.read(reinterpret_cast<char*>(c.outputs.back().data()), elements * sizeof(double));
        }
        if (!file)
        {
            throw std::runtime_error{path + ": ends inside a case"};
        }
        cases.push_back(std::move(c));
    }
    if (cases.empty())
    {
        throw std::runtime_error{path + ": no cases"};
    }
    return cases;
}
} // namespace harness
