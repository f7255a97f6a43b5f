#include "algorithms/shared/kv_formats.hpp"

#include <algorithm>
#include <bit>
#include <cfloat>
#include <cmath>
#include <cstdint>
#include <span>

#include "core/float16.hpp"

namespace kvbench {
namespace {

using Block = std::span<float>;

constexpr float kFp8Largest = 448.0F;
constexpr float kFp4Largest = 6.0F;

float half(float x) {
  return stored(DType::float16, static_cast<double>(x));
}

// The nearest number with `mantissa` bits after the leading one and exponents from `least` on, ties
// to even, saturating.
float small_float(float x, int mantissa, int least, float largest) {
  if (!(std::abs(x) < largest)) {
    return std::copysign(largest, x);
  }
  const int biased = static_cast<int>(std::bit_cast<std::uint32_t>(x) >> 23 & 0xffU);
  const int exponent = std::max(least + 127, biased) - mantissa;
  const auto step = std::bit_cast<float>(static_cast<std::uint32_t>(exponent) << 23);
  return std::nearbyint(x / step) * step;
}

float e4m3(float x) {
  return small_float(x, 3, -6, kFp8Largest);
}

float e2m1(float x) {
  return small_float(x, 1, 0, kFp4Largest);
}

float largest_magnitude(std::span<const float> x) {
  float out = 0.0F;
  for (const float value : x) {
    out = std::max(out, std::abs(value));
  }
  return out;
}

float inverse(float scale) {
  const float out = scale == 0.0F ? 0.0F : 1.0F / scale;
  return std::isfinite(out) ? out : 0.0F;
}

void q8_0(Block x) {
  const float scale = largest_magnitude(x) / 127.0F;
  const float inverted = inverse(scale);
  const float kept = half(scale);
  for (float& value : x) {
    value = std::round(value * inverted) * kept;
  }
}

// q4_0 and q5_0: `levels` codes around 0; the entry of largest magnitude gets the lowest.
void symmetric(Block x, float levels) {
  float extreme = 0.0F;
  for (const float value : x) {
    extreme = std::abs(value) > std::abs(extreme) ? value : extreme;
  }
  const float scale = extreme / (-levels / 2.0F);
  const float inverted = inverse(scale);
  const float kept = half(scale);
  for (float& value : x) {
    const float code = std::floor(value * inverted + (levels / 2.0F + 0.5F));
    value = (std::min(levels - 1.0F, code) - levels / 2.0F) * kept;
  }
}

// q4_1 and q5_1: `levels` codes from the least entry to the largest.
void asymmetric(Block x, float levels) {
  const auto [least, most] = std::ranges::minmax(x);
  const float scale = (most - least) / (levels - 1.0F);
  const float inverted = inverse(scale);
  const float kept = half(scale);
  const float offset = half(least);
  for (float& value : x) {
    const float code = std::floor((value - least) * inverted + 0.5F);
    value = std::min(levels - 1.0F, code) * kept + offset;
  }
}

void int8(Block x) {
  const float scale = largest_magnitude(x) / 127.0F;
  for (float& value : x) {
    value =
        scale == 0.0F ? 0.0F : std::clamp(std::nearbyint(value / scale), -127.0F, 127.0F) * scale;
  }
}

void fp8(Block x, float scale) {
  for (float& value : x) {
    value = scale == 0.0F ? 0.0F : e4m3(value / scale) * scale;
  }
}

void fp4(Block x, float scale) {
  for (float& value : x) {
    value = scale == 0.0F ? 0.0F : e2m1(value / scale) * scale;
  }
}

void mxfp4(Block x) {
  const float most = largest_magnitude(x);
  fp4(x, most == 0.0F ? 0.0F : std::ldexp(1.0F, std::clamp(std::ilogb(most) - 2, -127, 127)));
}

void nvfp4(Block x, float head_scale) {
  const float scale =
      head_scale == 0.0F ? 0.0F : e4m3(largest_magnitude(x) / kFp4Largest / head_scale);
  fp4(x, scale * head_scale);
}

void read_back_block(KvFormat format, Fp8Scale scale, float head_scale, Block x) {
  switch (format) {
    case KvFormat::f16: std::ranges::transform(x, x.begin(), half); break;
    case KvFormat::bf16:
      std::ranges::transform(x, x.begin(), [](float value) {
        return stored(DType::bfloat16, static_cast<double>(value));
      });
      break;
    case KvFormat::q8_0: q8_0(x); break;
    case KvFormat::q4_0: symmetric(x, 16.0F); break;
    case KvFormat::q4_1: asymmetric(x, 16.0F); break;
    case KvFormat::q5_0: symmetric(x, 32.0F); break;
    case KvFormat::q5_1: asymmetric(x, 32.0F); break;
    case KvFormat::fp8:
      fp8(x, scale == Fp8Scale::token ? largest_magnitude(x) / kFp8Largest : head_scale);
      break;
    case KvFormat::int8: int8(x); break;
    case KvFormat::mxfp4: mxfp4(x); break;
    case KvFormat::nvfp4: nvfp4(x, head_scale); break;
  }
}

// The scale that all rows share; 1: none.
float scale_of_head(KvFormat format, Fp8Scale scale, const Matrix& x) {
  const auto most = [&] {
    return largest_magnitude({x.data(), static_cast<std::size_t>(x.rows() * x.cols())});
  };
  if (format == KvFormat::fp8 && scale == Fp8Scale::head) {
    return most() / kFp8Largest;
  }
  return format == KvFormat::nvfp4 ? most() / (kFp8Largest * kFp4Largest) : 1.0F;
}

}  // namespace

const std::vector<std::string>& kv_format_names() {
  static const std::vector<std::string> names = {"f16",  "bf16", "q8_0", "q4_0",  "q4_1", "q5_0",
                                                 "q5_1", "fp8",  "int8", "mxfp4", "nvfp4"};
  return names;
}

KvFormat kv_format(const std::string& name) {
  const auto& names = kv_format_names();
  return static_cast<KvFormat>(std::ranges::find(names, name) - names.begin());
}

Index block_channels(KvFormat format) {
  switch (format) {
    case KvFormat::q8_0:
    case KvFormat::q4_0:
    case KvFormat::q4_1:
    case KvFormat::q5_0:
    case KvFormat::q5_1:
    case KvFormat::mxfp4: return 32;
    case KvFormat::nvfp4: return 16;
    default: return 1;
  }
}

CodeBytes format_bytes(KvFormat format, Fp8Scale scale, Index rows, Index width) {
  const Index channels = rows * width;
  const Index blocks = channels / block_channels(format);
  const Index once = rows > 0 ? 4 : 0;
  switch (format) {
    case KvFormat::f16:
    case KvFormat::bf16: return {2 * channels, 0};
    case KvFormat::q8_0: return {channels, 2 * blocks};
    case KvFormat::q4_0: return {channels / 2, 2 * blocks};
    case KvFormat::q4_1: return {channels / 2, 4 * blocks};
    case KvFormat::q5_0: return {channels * 5 / 8, 2 * blocks};
    case KvFormat::q5_1: return {channels * 5 / 8, 4 * blocks};
    case KvFormat::fp8:
      return {channels, scale == Fp8Scale::one ? 0 : scale == Fp8Scale::token ? 4 * rows : once};
    case KvFormat::int8: return {channels, 4 * rows};
    case KvFormat::mxfp4: return {channels / 2, blocks};
    case KvFormat::nvfp4: return {channels / 2, blocks + once};
  }
  return {};
}

void read_back(KvFormat format, Fp8Scale scale, Matrix& x) {
  const float head_scale = scale_of_head(format, scale, x);
  const Index length = block_channels(format) == 1 ? x.cols() : block_channels(format);
  for (Index i = 0; i < x.rows(); ++i) {
    for (Index c = 0; c < x.cols(); c += length) {
      const Block block{x.row(i) + c, static_cast<std::size_t>(length)};
      read_back_block(format, scale, head_scale, block);
      for (float& value : block) {  // largest code * scale may round past float32's range
        value = std::clamp(value, -FLT_MAX, FLT_MAX);
      }
    }
  }
}

}  // namespace kvbench
