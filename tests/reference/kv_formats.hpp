// Rows of a KV cache in the formats of serving engines, as bytes that are then read.
#pragma once

#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>

#include "reference/reference.hpp"

namespace reference {

struct StoredRows {
  std::vector<std::uint8_t> bytes;
  Rows rows;  ///< read from `bytes`
};

using Bytes = std::vector<std::uint8_t>;

using Floats = std::vector<float>;

// A floating-point format without a sign. Codes of finite numbers ascend with the numbers.
struct SmallFloat {
  int mantissa;
  int bias;
  unsigned last;  // code of the largest finite number

  Real value(unsigned code) const {
    const unsigned exponent = code >> mantissa;
    const auto fraction = static_cast<Real>(code & ((1U << mantissa) - 1U));
    const Real lead = exponent == 0 ? 0 : 1;
    return std::ldexp(lead + std::ldexp(fraction, -mantissa),
                      std::max(1, static_cast<int>(exponent)) - bias);
  }
  // The nearest, ties to the even code.
  unsigned nearest(Real x) const {
    unsigned best = 0;
    unsigned above = last;
    while (above - best > 1) {
      const unsigned middle = (best + above) / 2;
      (value(middle) <= x ? best : above) = middle;
    }
    const Real down = x - value(best);
    const Real up = value(above) - x;
    if (up < down || (up == down && above % 2 == 0)) {
      return above;
    }
    return best;
  }
};

inline const SmallFloat kHalf{10, 15, 0x7bff};
inline const SmallFloat kBfloat{7, 127, 0x7f7f};
inline const SmallFloat kE4m3{3, 7, 0x7e};
inline const SmallFloat kE2m1{1, 1, 7};

// Sign and magnitude in `bits` bits.
inline unsigned signed_code(const SmallFloat& f, float x, int bits) {
  return f.nearest(std::abs(static_cast<Real>(x))) |
         (std::signbit(x) ? 1U << static_cast<unsigned>(bits - 1) : 0U);
}

inline Real signed_value(const SmallFloat& f, unsigned code, int bits) {
  const unsigned sign = 1U << static_cast<unsigned>(bits - 1);
  return (code & sign) != 0 ? -f.value(code & ~sign) : f.value(code);
}

inline void put_float(Bytes& to, float x) {
  const auto bits = std::bit_cast<std::uint32_t>(x);
  for (unsigned i = 0; i < 4; ++i) {
    to.push_back(static_cast<std::uint8_t>(bits >> (8 * i)));
  }
}

inline Real put_half(Bytes& to, float x) {
  const unsigned code = signed_code(kHalf, x, 16);
  to.push_back(static_cast<std::uint8_t>(code));
  to.push_back(static_cast<std::uint8_t>(code >> 8U));
  return signed_value(kHalf, code, 16);
}

// Codes of `bits` bits, the lowest bit first, and back.
inline Bytes packed_codes(const std::vector<unsigned>& codes, unsigned bits) {
  Bytes out((codes.size() * bits + 7) / 8, 0);
  for (std::size_t i = 0; i < codes.size() * bits; ++i) {
    if ((codes[i / bits] >> (i % bits) & 1U) != 0) {
      out[i / 8] = static_cast<std::uint8_t>(out[i / 8] | 1U << (i % 8));
    }
  }
  return out;
}

inline std::vector<unsigned> unpacked_codes(const Bytes& bytes, unsigned bits, std::size_t count) {
  std::vector<unsigned> out(count, 0);
  for (std::size_t i = 0; i < count * bits; ++i) {
    out[i / bits] |= (bytes[i / 8] >> (i % 8) & 1U) << (i % bits);
  }
  return out;
}

inline std::vector<unsigned> written(Bytes& to, const std::vector<unsigned>& codes, unsigned bits) {
  const Bytes packed = packed_codes(codes, bits);
  to.insert(to.end(), packed.begin(), packed.end());
  return unpacked_codes(packed, bits, codes.size());
}

inline float magnitude(const Floats& x) {
  float out = 0;
  for (const float v : x) {
    out = std::abs(v) > out ? std::abs(v) : out;
  }
  return out;
}

inline float over(float scale) {
  return scale == 0 ? 0 : 1 / scale;
}

inline Vec ggml_block(const std::string& type, const Floats& x, Bytes& to) {
  Vec out;
  std::vector<unsigned> codes;
  if (type == "q8_0") {
    const float d = magnitude(x) / 127;
    const Real stored = put_half(to, d);
    for (const float v : x) {
      codes.push_back(static_cast<unsigned>(static_cast<int>(std::round(v * over(d))) + 128));
    }
    for (const unsigned c : written(to, codes, 8)) {
      out.push_back((static_cast<Real>(c) - 128) * stored);
    }
    return out;
  }
  const unsigned bits = type[1] == '4' ? 4 : 5;
  const float top = bits == 4 ? 15.0F : 31.0F;
  if (type[3] == '0') {
    std::size_t at = 0;
    for (std::size_t i = 1; i < x.size(); ++i) {
      at = std::abs(x[i]) > std::abs(x[at]) ? i : at;
    }
    const float middle = (top + 1) / 2;
    const float d = x[at] / -middle;
    const Real stored = put_half(to, d);
    for (const float v : x) {
      const float scaled = v * over(d);
      codes.push_back(static_cast<unsigned>(std::min(top, std::floor(scaled + (middle + 0.5F)))));
    }
    for (const unsigned c : written(to, codes, bits)) {
      out.push_back((static_cast<Real>(c) - static_cast<Real>(middle)) * stored);
    }
    return out;
  }
  float low = x[0];
  float high = x[0];
  for (const float v : x) {
    low = std::min(low, v);
    high = std::max(high, v);
  }
  const float d = (high - low) / top;
  const Real stored = put_half(to, d);
  const Real offset = put_half(to, low);
  for (const float v : x) {
    const float scaled = (v - low) * over(d);
    codes.push_back(static_cast<unsigned>(std::min(top, std::floor(scaled + 0.5F))));
  }
  for (const unsigned c : written(to, codes, bits)) {
    out.push_back(static_cast<float>(static_cast<Real>(c) * stored + offset));
  }
  return out;
}

// Codes of x / scale with 8 or 4 bits.
inline Vec float_block(const SmallFloat& f, unsigned bits, const Floats& x, float scale,
                       Bytes& to) {
  std::vector<unsigned> codes;
  for (const float v : x) {
    codes.push_back(scale == 0 ? 0 : signed_code(f, v / scale, static_cast<int>(bits)));
  }
  Vec out;
  for (const unsigned c : written(to, codes, bits)) {
    out.push_back(static_cast<float>(signed_value(f, c, static_cast<int>(bits))) * scale);
  }
  return out;
}

inline Vec block_of(const std::string& type, const Floats& x, float head,
                    const std::string& fp8_scale, Bytes& to) {
  Vec out;
  if (type == "f16") {
    for (const float v : x) {
      out.push_back(put_half(to, v));
    }
  } else if (type == "bf16") {
    for (const float v : x) {
      const unsigned code = signed_code(kBfloat, v, 16);
      to.push_back(static_cast<std::uint8_t>(code));
      to.push_back(static_cast<std::uint8_t>(code >> 8U));
      out.push_back(signed_value(kBfloat, code, 16));
    }
  } else if (type == "fp8") {
    float scale = fp8_scale == "head" ? head / 448 : 1;
    if (fp8_scale == "token") {
      scale = magnitude(x) / 448;
      put_float(to, scale);
    }
    out = float_block(kE4m3, 8, x, scale, to);
  } else if (type == "int8") {
    const float scale = magnitude(x) / 127;
    put_float(to, scale);
    for (const float v : x) {
      const float code = scale == 0 ? 0 : std::nearbyint(v / scale);
      to.push_back(static_cast<std::uint8_t>(static_cast<int>(code)));
      out.push_back(code * scale);
    }
  } else if (type == "mxfp4") {
    // The largest power of two up to the magnitude, over four.
    int exponent = -127;
    while (exponent < 127 && std::ldexp(Real{4}, exponent + 1) <= static_cast<Real>(magnitude(x))) {
      ++exponent;
    }
    to.push_back(static_cast<std::uint8_t>(exponent + 127));
    const float scale = magnitude(x) == 0 ? 0 : std::ldexp(1.0F, exponent);
    out = float_block(kE2m1, 4, x, scale, to);
  } else if (type == "nvfp4") {
    const float g = head / (448 * 6);
    const unsigned code = g == 0 ? 0 : kE4m3.nearest(magnitude(x) / 6 / g);
    to.push_back(static_cast<std::uint8_t>(code));
    out = float_block(kE2m1, 4, x, static_cast<float>(kE4m3.value(code)) * g, to);
  } else {
    out = ggml_block(type, x, to);
  }
  return out;
}

/// `type`: f16, bf16, q8_0, q4_0, q4_1, q5_0, q5_1, fp8, int8, mxfp4, nvfp4. `fp8_scale`: one,
/// head, token.
inline StoredRows stored_rows(const std::string& type, const Rows& rows,
                              const std::string& fp8_scale) {
  StoredRows out;
  float head = 0;
  for (const Vec& row : rows) {
    head = std::max(head, magnitude(Floats(row.begin(), row.end())));
  }
  if (!rows.empty() && (type == "nvfp4" || (type == "fp8" && fp8_scale == "head"))) {
    put_float(out.bytes, type == "fp8" ? head / 448 : head / (448 * 6));
  }
  const bool blocks = type[0] == 'q' || type == "mxfp4";
  for (const Vec& row : rows) {
    const std::size_t length = blocks ? 32 : type == "nvfp4" ? 16 : row.size();
    Vec read;
    for (std::size_t c = 0; c < row.size(); c += length) {
      const auto from = row.begin() + static_cast<std::ptrdiff_t>(c);
      const Floats x(from, from + static_cast<std::ptrdiff_t>(length));
      const Vec block = block_of(type, x, head, fp8_scale, out.bytes);
      read.insert(read.end(), block.begin(), block.end());
    }
    out.rows.push_back(read);
  }
  return out;
}

/// Rows times the matrix with entries (-1)^popcount(i & j) / sqrt(block), `block` channels at a
/// time.
inline Rows turned(const Rows& rows, std::size_t block) {
  Rows out;
  for (const Vec& row : rows) {
    Vec to(row.size(), 0);
    for (std::size_t i = 0; i < row.size(); ++i) {
      for (std::size_t j = 0; j < block; ++j) {
        const bool minus = std::popcount((i % block) & j) % 2 != 0;
        to[i] +=
            (minus ? -1 : 1) * row[i / block * block + j] / std::sqrt(static_cast<Real>(block));
      }
    }
    out.push_back(to);
  }
  return out;
}

}  // namespace reference
