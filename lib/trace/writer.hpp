// Writes traces (docs/trace_format.md) one head at a time.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/rope.hpp"
#include "core/types.hpp"

namespace kvbench {

/// Root attributes and storage of a trace to be written.
struct TraceHeader {
  std::string model;          ///< model id and revision
  std::string source;         ///< data set
  std::string created;        ///< date
  std::string rope = "post";  ///< "post" or "none"
  DType dtype = DType::float16;
  std::optional<double> scale;  ///< finite, > 0; absent means 1/sqrt(d)
  /// 0 stores chunks as they are; 1..9 shuffle and gzip them. Larger is smaller and slower.
  int gzip_level = 4;
};

/// One layer to be written. Sizes at least 1; q_heads a multiple of kv_heads; nq <= the prompt's n.
struct LayerSpec {
  Index layer = 0;  ///< index in the model, 0 .. 1000000, once per prompt
  Index q_heads = 1;
  Index kv_heads = 1;
  Index nq = 1;
  Index d = 1;
  Index dv = 1;
  std::optional<double> scale;                ///< finite, > 0; overrides the header's
  std::optional<double> fisher;               ///< finite, >= 0
  std::vector<std::uint8_t> retrieval_heads;  ///< [kv_heads] or empty
  std::vector<float> sink_logit = {};         ///< [q_heads], finite; or empty
  std::optional<Index> window = {};           ///< at least 1
};

/// A trace being written to PATH.tmp.
///
/// Order of calls: begin_prompt; per layer begin_layer, then every head of q, k and v once and the
/// optional projection and norms in any order; finally close(). Prompts and layers may come in any
/// order. Values are rounded to the header's dtype (to nearest, ties to even). Throws InputError
/// for sizes, names and orders of calls that the schema does not allow and for values that are not
/// finite after rounding; IoError if the file cannot be written. Threads: one at a time;
/// compression uses OpenMP threads of its own.
class TraceWriter {
 public:
  TraceWriter(const std::string& path, const TraceHeader& header);
  /// Without close(), removes PATH.tmp and leaves PATH as it was.
  ~TraceWriter();
  TraceWriter(TraceWriter&&) noexcept;
  TraceWriter& operator=(TraceWriter&&) noexcept;
  TraceWriter(const TraceWriter&) = delete;
  TraceWriter& operator=(const TraceWriter&) = delete;

  /// `id`: not empty, not ".", without "/". `token_ids`: [n_tokens] or empty.
  void begin_prompt(const std::string& id, Index n_tokens, const std::string& text_id = "",
                    std::span<const std::int32_t> token_ids = {});
  void begin_layer(const LayerSpec& layer);
  void write_q(Index q_head, MatrixView q);   ///< [nq, d]
  void write_k(Index kv_head, MatrixView k);  ///< [n, d]
  void write_v(Index kv_head, MatrixView v);  ///< [n, dv]

  /// The output projection of the layer, [hidden, q_heads * dv], columns head by head, rounded to
  /// the header's dtype. At most once.
  void write_o_proj(MatrixView w);
  /// The norm of the residual stream that the attention output is added to, for each stored query:
  /// float32 [nq], at least 0. At most once.
  void write_residual_norm(std::span<const float> norms);

  /// Rotary tables of all layers, once, or of one layer index, once each. At least one position and
  /// one pair, cos and sin of one shape, all finite.
  void write_rope(const RopeTables& tables, std::optional<Index> layer = {});

  /// Finishes the last layer, closes the file and renames it to PATH.
  void close();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace kvbench
