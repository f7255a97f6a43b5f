// Internal to lib/trace: stored elements of all types and byte orders, to numbers.
#pragma once

#include <array>
#include <cstdint>

#include "core/types.hpp"
#include "trace/survey.hpp"

namespace kvbench::h5 {

/// `count` elements, little-endian and aligned to their size, to numbers of another type at `to`.
using Convert = void (*)(const std::uint8_t* from, Index count, void* to);

/// To float32, of a standard float.
Convert real_converter(const Element& element);
/// To float32, of the bits of bfloat16.
Convert bfloat16_converter();
/// To int64, of a standard integer. Naturals above the largest become it.
Convert integer_converter(const Element& element);

/// Elements that fit the first-level cache, on their way to a converter.
inline constexpr Index kElementBlock = 2048;
using ElementBlock = std::array<std::uint64_t, kElementBlock>;

/// `count` elements of `width` bytes behind `first` of a chunk of `all`, joined from their byte
/// planes into the block; at most kElementBlock.
const std::uint8_t* joined(const std::uint8_t* plain, Index width, Index all, Index first,
                           Index count, ElementBlock& block);

/// The same elements in the other byte order, in the block, where they may lie already.
const std::uint8_t* turned(const std::uint8_t* from, Index width, Index count, ElementBlock& block);

}  // namespace kvbench::h5
