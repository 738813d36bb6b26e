// float32, float16 and bfloat16 on the host: decode to double, encode with round to nearest even.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

namespace harness
{
struct FloatType
{
    char const* name; // as in the kernels' names
    int bytes;
    int mantissa; // stored bits
    int exponent; // bits
};

// In the order of the library's dtype ids.
inline constexpr FloatType kFloatTypes[] = {{"fp32", 4, 23, 8}, {"fp16", 2, 10, 5}, {"bf16", 2, 7, 8}};

inline double unitRoundoff(FloatType const& type)
{
    return std::ldexp(1.0, -type.mantissa - 1);
}

inline double smallestNormal(FloatType const& type)
{
    return std::ldexp(1.0, 2 - (1 << (type.exponent - 1)));
}

inline uint32_t load(void const* data, int64_t index, FloatType const& type)
{
    uint32_t bits = 0;
    std::memcpy(&bits, static_cast<char const*>(data) + index * type.bytes, type.bytes);
    return bits;
}

inline double decode(void const* data, int64_t index, FloatType const& type)
{
    uint32_t const bits = load(data, index, type);
    int const total = type.mantissa + type.exponent;
    double const sign = (bits >> total) & 1U ? -1.0 : 1.0;
    int const exponent = static_cast<int>((bits >> type.mantissa) & ((1U << type.exponent) - 1));
    double const fraction = std::ldexp(static_cast<double>(bits & ((1U << type.mantissa) - 1)), -type.mantissa);
    int const bias = (1 << (type.exponent - 1)) - 1;
    if (exponent == (1 << type.exponent) - 1)
    {
        return fraction != 0.0 ? std::nan("") : sign * INFINITY;
    }
    return exponent == 0 ? sign * std::ldexp(fraction, 1 - bias) : sign * std::ldexp(1.0 + fraction, exponent - bias);
}

// The nearest value of the type, as a double; infinity where it overflows.
inline double roundTo(double value, FloatType const& type)
{
    if (value == 0.0 || !std::isfinite(value))
    {
        return value;
    }
    int exponent = 0;
    std::frexp(value, &exponent);
    int const bias = (1 << (type.exponent - 1)) - 1;
    int const lowest = 1 - bias;
    int const scale = (exponent - 1 < lowest ? lowest : exponent - 1) - type.mantissa;
    double const rounded = std::ldexp(std::nearbyint(std::ldexp(value, -scale)), scale);
    return std::fabs(rounded) >= std::ldexp(1.0, bias + 1) ? std::copysign(INFINITY, value) : rounded;
}

inline void encode(void* data, int64_t index, FloatType const& type, double value)
{
    double const rounded = roundTo(value, type);
    uint32_t bits = 0;
    int const bias = (1 << (type.exponent - 1)) - 1;
    uint32_t const top = (1U << type.exponent) - 1;
    if (std::isnan(rounded) || std::isinf(rounded))
    {
        bits = (top << type.mantissa) | (std::isnan(rounded) ? 1U << (type.mantissa - 1) : 0U);
    }
    else if (rounded != 0.0)
    {
        int exponent = 0;
        double const fraction = std::frexp(std::fabs(rounded), &exponent); // in [0.5, 1)
        int const stored = exponent - 1 + bias;
        bits = stored >= 1
            ? static_cast<uint32_t>(std::ldexp(fraction * 2.0 - 1.0, type.mantissa))
                + (static_cast<uint32_t>(stored) << type.mantissa)
            : static_cast<uint32_t>(std::ldexp(std::fabs(rounded), bias - 1 + type.mantissa));
    }
    bits |= static_cast<uint32_t>(std::signbit(rounded) ? 1U : 0U) << (type.mantissa + type.exponent);
    std::memcpy(static_cast<char*>(data) + index * type.bytes, &bits, type.bytes);
}
} // namespace harness
