// What a fuzz target has: the target itself, and the input that stands for a whole file.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* bytes, std::size_t size);

namespace kvbench::fuzz {

using Bytes = std::vector<std::uint8_t>;

/// What a damaged input begins as.
Bytes input_of(const std::string& path);

}  // namespace kvbench::fuzz
