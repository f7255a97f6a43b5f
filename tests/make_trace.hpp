// Tiny seeded traces for tests of the replay: random normal values, any shape, through the writer.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <limits>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "core/rope.hpp"
#include "core/types.hpp"
#include "files.hpp"
#include "trace/writer.hpp"

namespace kvbench::testing_replay {

struct TraceShape {
  std::vector<Index> tokens{48};  ///< one prompt of that length each: p0, p1, ...
  std::vector<Index> layers{0};   ///< layer indices in the model
  Index q_heads = 4;
  Index kv_heads = 2;
  Index nq = 0;  ///< last queries stored; 0: all
  Index d = 8;
  Index dv = 6;
  DType dtype = DType::float16;
  std::uint64_t seed = 1;
  float value_scale = 1.0F;        ///< 0: all values are 0, and so is every exact output
  std::optional<float> mark = {};  ///< put at v[last head][n / 2][0] of the last layer: see poison
  std::optional<RopeTables> rope = {};  ///< of all layers
  Index hidden = 0;            ///< rows of the output projections; 0: none, see made_projection
  bool residual_norm = false;  ///< 1, 1.25, 1.5, ... by stored query
  std::vector<float> sink_logit = {};  ///< [q_heads] of every layer; empty: none
  std::optional<Index> window = {};    ///< of the last of `layers`
};

inline Matrix random_matrix(Index rows, Index cols, float scale, std::mt19937_64& random) {
  std::normal_distribution<float> normal;
  Matrix m(rows, cols);
  for (Index i = 0; i < rows * cols; ++i) {
    m.data()[i] = scale * normal(random);
  }
  return m;
}

/// The output projection of a layer, [hidden, heads * dv]: exact in every element type, and no two
/// neighbouring rows, columns or layers alike.
inline Matrix made_projection(Index hidden, Index columns, Index layer) {
  Matrix w(hidden, columns);
  for (Index r = 0; r < hidden; ++r) {
    for (Index c = 0; c < columns; ++c) {
      w.row(r)[c] = static_cast<float>((r * 31 + c * 7 + layer * 11) % 61 - 30) / 4.0F;
    }
  }
  return w;
}

/// Tables of angles position * theta^(-2 t / rope_dim), times `factor` (yarn's attention factor).
inline RopeTables rope_tables(Index positions, Index rope_dim, RopeLayout layout = RopeLayout::half,
                              double theta = 10000.0, double factor = 1.0) {
  RopeTables out;
  out.layout = layout;
  out.cos = Matrix(positions, rope_dim / 2);
  out.sin = Matrix(positions, rope_dim / 2);
  for (Index p = 0; p < positions; ++p) {
    for (Index t = 0; t < rope_dim / 2; ++t) {
      const double angle =
          static_cast<double>(p) *
          std::pow(theta, -2.0 * static_cast<double>(t) / static_cast<double>(rope_dim));
      out.cos.row(p)[t] = static_cast<float>(factor * std::cos(angle));
      out.sin.row(p)[t] = static_cast<float>(factor * std::sin(angle));
    }
  }
  return out;
}

/// Writes the trace; returns its path as text, as options want it.
inline std::string make_trace(const std::filesystem::path& path, const TraceShape& shape = {}) {
  std::mt19937_64 random(shape.seed);
  TraceHeader header;
  header.model = "made up";
  header.source = "random numbers";
  header.dtype = shape.dtype;
  header.gzip_level = 0;
  TraceWriter writer(path.string(), header);
  for (std::size_t p = 0; p < shape.tokens.size(); ++p) {
    const Index n = shape.tokens[p];
    writer.begin_prompt("p" + std::to_string(p), n);
    for (const Index layer : shape.layers) {
      LayerSpec spec;
      spec.layer = layer;
      spec.q_heads = shape.q_heads;
      spec.kv_heads = shape.kv_heads;
      spec.nq = shape.nq > 0 ? std::min(shape.nq, n) : n;
      spec.d = shape.d;
      spec.dv = shape.dv;
      spec.sink_logit = shape.sink_logit;
      if (layer == shape.layers.back()) {
        spec.window = shape.window;
      }
      writer.begin_layer(spec);
      for (Index h = 0; h < spec.q_heads; ++h) {
        writer.write_q(h, random_matrix(spec.nq, spec.d, 1.5F, random));
      }
      for (Index h = 0; h < spec.kv_heads; ++h) {
        writer.write_k(h, random_matrix(n, spec.d, 1.5F, random));
        Matrix v = random_matrix(n, spec.dv, shape.value_scale, random);
        if (shape.mark && h + 1 == spec.kv_heads && layer == shape.layers.back()) {
          v.row(n / 2)[0] = *shape.mark;
        }
        writer.write_v(h, v);
      }
      if (shape.hidden > 0) {
        writer.write_o_proj(made_projection(shape.hidden, spec.q_heads * spec.dv, layer));
      }
      if (shape.residual_norm) {
        std::vector<float> norms;
        for (Index r = 0; r < spec.nq; ++r) {
          norms.push_back(1.0F + static_cast<float>(r) / 4.0F);
        }
        writer.write_residual_norm(norms);
      }
    }
  }
  if (shape.rope) {
    writer.write_rope(*shape.rope);
  }
  writer.close();
  return path.string();
}

/// Replaces the stored `mark` of a float32 trace by NaN, which the writer would refuse.
inline void poison(const std::filesystem::path& path, float mark) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  std::string bytes = read_bytes(path);
  std::string from(sizeof mark, '\0');
  std::string to(sizeof nan, '\0');
  std::memcpy(from.data(), &mark, sizeof mark);
  std::memcpy(to.data(), &nan, sizeof nan);
  const std::size_t at = bytes.find(from);
  ASSERT_NE(at, std::string::npos) << "the mark is not in " << path;
  bytes.replace(at, to.size(), to);
  write_bytes(path, bytes);
}

}  // namespace kvbench::testing_replay
