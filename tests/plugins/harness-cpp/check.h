// Collects failures from any thread; the harness exits 1 when there are any.
#pragma once

#include <atomic>
#include <cstdio>
#include <string>

namespace harness
{
inline std::atomic<int> gFailures{0};
inline std::atomic<int> gChecks{0};

inline void check(bool holds, std::string const& what)
{
    ++gChecks;
    if (!holds)
    {
        ++gFailures;
        std::fprintf(stderr, "FAILED: %s\n", what.c_str());
    }
}
} // namespace harness
