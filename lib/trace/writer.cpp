#include "trace/writer.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <new>
#include <string_view>
#include <utility>

#include "core/float16.hpp"
#include "trace/chunk_codec.hpp"
#include "trace/dataset.hpp"
#include "trace/output_file.hpp"

namespace kvbench {

using h5::Handle;

namespace {

// HDF5 cannot hold a chunk of 4 GiB or more.
constexpr Index kMaxChunkBytes = Index{1} << 31;
constexpr Index kMaxSize = Index{1} << 40;

template <class... Args>
void expect(const std::string& path, bool good, fmt::format_string<Args...> what, Args&&... args) {
  if (!good) {
    h5::raise<InputError>("{}: {}", path, fmt::format(what, std::forward<Args>(args)...));
  }
}

bool is_scale(const std::optional<double>& x) {
  return !x || (std::isfinite(*x) && *x > 0);
}

std::string digest(DType type, const float* x, Index count) {
  h5::ElementHash hash(type);
  hash.add(x, count);
  return hash.text();
}

TraceHeader checked(const std::string& path, const TraceHeader& header) {
  expect(path, header.rope == schema::kRopePost || header.rope == schema::kRopeNone,
         "rope is \"{}\", expected \"post\" or \"none\"", header.rope);
  expect(path, is_scale(header.scale), "scale is {}, expected a finite number > 0",
         header.scale.value_or(0));
  expect(path, header.gzip_level >= 0 && header.gzip_level <= 9,
         "gzip level is {}, expected 0 to 9", header.gzip_level);
  return header;
}

}  // namespace

struct TraceWriter::Impl {
  // One q, k or v dataset that is being written.
  struct Output {
    Handle id;
    const char* name = "";
    std::vector<Index> sizes;   // [heads, rows, width]
    std::vector<bool> written;  // per head
    std::vector<std::string> digests;
  };

  TraceHeader header;
  h5::OutputFile out;
  Handle prompts;
  Handle layers;  // of the last prompt
  Index n = 0;
  bool bare_prompt = false;  // the last prompt has no layer
  std::optional<LayerSpec> layer;
  Handle group;                // of the layer
  std::array<Output, 3> rows;  // by LayerTensor

  Impl(const std::string& path, const TraceHeader& h) : header(checked(path, h)), out(path) {}
  ~Impl() {
    const h5::Session session;  // silences errors of closing
    for (Output& data : rows) {
      data.id.reset();
    }
    group.reset();
    layers.reset();
    prompts.reset();
  }
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;

  template <class... Args>
  void expect(bool good, fmt::format_string<Args...> what, Args&&... args) const {
    kvbench::expect(out.path(), good, what, std::forward<Args>(args)...);
  }

  void create(LayerTensor what, const std::vector<Index>& sizes);
  void finish_layer();
  void write(LayerTensor what, Index head, MatrixView m);
  void write_chunks(const Handle& data, MatrixView m, std::vector<hsize_t> offset,
                    std::size_t row_axis, const std::string& what) const;
  // Throws unless a layer is open that has no dataset of that name.
  void expect_new(std::string_view name) const;
  // Throws if a value is not finite after rounding to the file's type.
  void check_finite(std::string_view what, MatrixView m) const;
};

void TraceWriter::Impl::create(LayerTensor what, const std::vector<Index>& sizes) {
  const char* name = h5::rows_spec(what).name;
  const Index chunk_rows = std::min(sizes[1], schema::kMaxChunkTokens);
  Index total = bytes_per_element(header.dtype);
  for (const Index size : sizes) {
    expect(size >= 1 && size <= kMaxSize && !__builtin_mul_overflow(total, size, &total),
           "{} has shape [{}], expected sizes of at least 1 whose product fits memory", name,
           fmt::join(sizes, ", "));
  }
  expect(sizes[2] <= kMaxChunkBytes / (chunk_rows * bytes_per_element(header.dtype)),
         "{} has width {}, expected a chunk below 2 GiB", name, sizes[2]);
  rows[static_cast<std::size_t>(what)] = {
      out.chunked(group, name, header.dtype, sizes, {1, chunk_rows, sizes[2]}, header.gzip_level),
      name, sizes, std::vector<bool>(sizes[0], false), std::vector<std::string>(sizes[0])};
}

void TraceWriter::Impl::check_finite(std::string_view what, MatrixView m) const {
  for (Index i = 0; i < m.rows * m.cols; ++i) {
    if (!std::isfinite(round_to(header.dtype, m.data[i]))) {
      expect(false, "{}, row {}: {} is not finite as {}", what, i / m.cols, m.data[i],
             name(header.dtype));
    }
  }
}

void TraceWriter::Impl::write_chunks(const Handle& data, MatrixView m, std::vector<hsize_t> offset,
                                     std::size_t row_axis, const std::string& what) const try {
  const Index chunk_rows = std::min(m.rows, schema::kMaxChunkTokens);
  for (const h5::Bytes& chunk : h5::encode_head(m, chunk_rows, header.dtype, header.gzip_level)) {
    if (H5Dwrite_chunk(data, H5P_DEFAULT, 0, offset.data(), chunk.size(), chunk.data()) < 0) {
      out.fail(what);
    }
    offset[row_axis] += static_cast<hsize_t>(chunk_rows);
  }
} catch (const std::bad_alloc&) {
  h5::raise<IoError>("{}.tmp: not enough memory for {}", out.path(), what);
}

void TraceWriter::Impl::write(LayerTensor what, Index head, MatrixView m) {
  const h5::Session session;
  Output& to = rows[static_cast<std::size_t>(what)];
  expect(layer.has_value(), "{} written before begin_layer", h5::rows_spec(what).name);
  expect(head >= 0 && head < to.sizes[0] && !to.written[head],
         "{} head {} is out of range or written twice, expected 0 <= head < {}", to.name, head,
         to.sizes[0]);
  expect(m.rows == to.sizes[1] && m.cols == to.sizes[2],
         "{} head {} has shape [{}, {}], expected [{}, {}]", to.name, head, m.rows, m.cols,
         to.sizes[1], to.sizes[2]);
  const std::string head_name = fmt::format("{} head {}", to.name, head);
  check_finite(head_name, m);
  write_chunks(to.id, m, {static_cast<hsize_t>(head), 0, 0}, 1, head_name);
  to.digests[head] = digest(header.dtype, m.data, m.rows * m.cols);
  to.written[head] = true;
}

void TraceWriter::Impl::finish_layer() {
  if (!layer) {
    return;
  }
  for (Output& data : rows) {
    const auto missing = std::ranges::find(data.written, false);
    expect(missing == data.written.end(), "layer {}: {} head {} was never written", layer->layer,
           data.name, missing - data.written.begin());
    if (data.digests.size() <= h5::kMaxTextsWritten) {  // otherwise heads have no SHA-256
      out.attribute(data.id, schema::kDigest, data.digests);
    }
    out.close(std::move(data.id), fmt::format("layer {}: {}", layer->layer, data.name));
  }
  group.reset();
  layer.reset();
}

void TraceWriter::Impl::expect_new(std::string_view name) const {
  expect(layer && !h5::has_link(group, name), "{} written before begin_layer or twice", name);
}

TraceWriter::TraceWriter(const std::string& path, const TraceHeader& header) {
  const h5::Session session;
  impl_ = std::make_unique<Impl>(path, header);
  const h5::OutputFile& out = impl_->out;
  const Handle& root = out.file();
  out.attribute(root, "format", schema::kFormat);
  out.attribute(root, "version", schema::kVersion);
  out.attribute(root, "model", header.model);
  out.attribute(root, "source", header.source);
  out.attribute(root, "created", header.created);
  out.attribute(root, "dtype", name(header.dtype));
  out.attribute(root, "rope", header.rope);
  out.attribute(root, "scale", header.scale);
  impl_->prompts = out.group(root, schema::kPrompts);
}

TraceWriter::~TraceWriter() = default;
TraceWriter::TraceWriter(TraceWriter&&) noexcept = default;
TraceWriter& TraceWriter::operator=(TraceWriter&&) noexcept = default;

void TraceWriter::begin_prompt(const std::string& id, Index n_tokens, const std::string& text_id,
                               std::span<const std::int32_t> token_ids) {
  const h5::Session session;
  Impl& w = *impl_;
  w.finish_layer();
  w.expect(!w.bare_prompt, "a prompt has no layers");
  w.expect(!id.empty() && id != "." && id.find_first_of(std::string_view("/\0", 2)) == id.npos &&
               !h5::has_link(w.prompts, id),
           "prompt id \"{}\" is empty, \".\", has a slash or is taken", id);
  w.expect(n_tokens >= 1 && n_tokens <= kMaxSize, "n_tokens is {}, expected at least 1", n_tokens);
  w.expect(token_ids.empty() || std::ssize(token_ids) == n_tokens,
           "{} token ids, expected n_tokens = {}", token_ids.size(), n_tokens);
  const Handle prompt = w.out.group(w.prompts, id);
  w.out.attribute(prompt, "n_tokens", n_tokens);
  if (!text_id.empty()) {
    w.out.attribute(prompt, "text_id", text_id);
  }
  if (!token_ids.empty()) {
    h5::ElementHash hash(DType::float32);
    const std::vector<std::int64_t> wide(token_ids.begin(), token_ids.end());
    hash.add_integers(wide, sizeof token_ids.front());
    w.out.checked_dataset(prompt, schema::kTokenIds.data(), H5T_STD_I32LE, {n_tokens},
                          token_ids.data(), hash.text());
  }
  w.layers = w.out.group(prompt, schema::kLayers);
  w.n = n_tokens;
  w.bare_prompt = true;
}

void TraceWriter::begin_layer(const LayerSpec& layer) {
  const h5::Session session;
  Impl& w = *impl_;
  w.finish_layer();
  w.expect(static_cast<bool>(w.layers), "begin_layer before begin_prompt");
  const std::string name = std::to_string(layer.layer);
  w.expect(parse_layer_name(name) && !h5::has_link(w.layers, name),
           "layer {} is out of range or written twice", name);
  w.expect(layer.kv_heads >= 1 && layer.q_heads >= 1 && layer.q_heads % layer.kv_heads == 0,
           "layer {}: {} query heads, expected a multiple of the {} KV heads", name, layer.q_heads,
           layer.kv_heads);
  w.expect(layer.nq >= 1 && layer.nq <= w.n, "layer {}: nq is {}, expected 1 to n = {}", name,
           layer.nq, w.n);
  w.expect(is_scale(layer.scale), "layer {}: scale is {}, expected a finite number > 0", name,
           layer.scale.value_or(0));
  const double fisher = layer.fisher.value_or(0);
  w.expect(std::isfinite(fisher) && fisher >= 0,
           "layer {}: fisher is {}, expected a finite number >= 0", name, fisher);
  w.expect(layer.retrieval_heads.empty() || std::ssize(layer.retrieval_heads) == layer.kv_heads,
           "layer {}: {} retrieval flags, expected {}", name, layer.retrieval_heads.size(),
           layer.kv_heads);
  w.expect(layer.sink_logit.empty() || std::ssize(layer.sink_logit) == layer.q_heads,
           "layer {}: {} sink logits, expected {}", name, layer.sink_logit.size(), layer.q_heads);
  for (const float x : layer.sink_logit) {
    w.expect(std::isfinite(x), "layer {}: a sink logit is {}, expected a finite number", name, x);
  }
  const Index window = layer.window.value_or(1);
  w.expect(window >= 1, "layer {}: window is {}, expected at least 1", name, window);
  w.group = w.out.group(w.layers, name);
  w.create(LayerTensor::queries, {layer.q_heads, layer.nq, layer.d});
  w.create(LayerTensor::keys, {layer.kv_heads, w.n, layer.d});
  w.create(LayerTensor::values, {layer.kv_heads, w.n, layer.dv});
  w.out.attribute(w.group, "scale", layer.scale);
  w.out.attribute(w.group, "fisher", layer.fisher);
  if (!layer.retrieval_heads.empty()) {
    w.out.attribute(w.group, "retrieval_heads", layer.retrieval_heads);
  }
  if (!layer.sink_logit.empty()) {
    w.out.attribute(w.group, "sink_logit", layer.sink_logit);
  }
  w.out.attribute(w.group, "window", layer.window);
  w.layer = layer;
  w.bare_prompt = false;
}

void TraceWriter::write_q(Index q_head, MatrixView q) {
  impl_->write(LayerTensor::queries, q_head, q);
}

void TraceWriter::write_k(Index kv_head, MatrixView k) {
  impl_->write(LayerTensor::keys, kv_head, k);
}

void TraceWriter::write_v(Index kv_head, MatrixView v) {
  impl_->write(LayerTensor::values, kv_head, v);
}

void TraceWriter::write_o_proj(MatrixView m) {
  const h5::Session session;
  Impl& w = *impl_;
  const char* name = h5::kOProj.name;
  w.expect_new(name);
  const Index dv = w.layer->dv;
  const Index width = w.layer->q_heads * dv;
  w.expect(m.rows >= 1 && m.cols == width, "o_proj has shape [{}, {}], expected [hidden, {}]",
           m.rows, m.cols, width);
  w.check_finite(name, m);
  Handle data = w.out.chunked(w.group, name, w.header.dtype, {m.rows, m.cols},
                              {std::min(m.rows, schema::kMaxChunkTokens), dv}, w.header.gzip_level);
  Matrix head(m.rows, dv);
  for (Index first = 0; first < m.cols; first += dv) {
    for (Index r = 0; r < m.rows; ++r) {
      std::copy_n(m.row(r) + first, dv, head.row(r));
    }
    w.write_chunks(data, head, {0, static_cast<hsize_t>(first)}, 0, name);
  }
  w.out.attribute(data, schema::kDigest, digest(w.header.dtype, m.data, m.rows * m.cols));
  w.out.close(std::move(data), name);
}

void TraceWriter::write_residual_norm(std::span<const float> norms) {
  const h5::Session session;
  Impl& w = *impl_;
  w.expect_new(h5::kResidualNorm.name);
  w.expect(std::ssize(norms) == w.layer->nq, "{} residual norms, expected nq = {}", norms.size(),
           w.layer->nq);
  for (const float x : norms) {
    w.expect(std::isfinite(x) && x >= 0, "residual norm is {}, expected finite numbers >= 0", x);
  }
  w.out.checked_dataset(w.group, h5::kResidualNorm.name, H5T_IEEE_F32LE, {w.layer->nq},
                        norms.data(), digest(DType::float32, norms.data(), std::ssize(norms)));
}

void TraceWriter::write_rope(const RopeTables& tables, std::optional<Index> layer) {
  const h5::Session session;
  Impl& w = *impl_;
  const std::vector<Index> sizes{tables.cos.rows(), tables.cos.cols()};
  w.expect(
      sizes[0] >= 1 && sizes[1] >= 1 && sizes == std::vector{tables.sin.rows(), tables.sin.cols()},
      "rotary tables are empty or differ in shape");
  w.expect(w.header.rope != schema::kRopeNone, "rotary tables, expected none: rope is \"none\"");
  for (const Matrix* table : {&tables.cos, &tables.sin}) {
    w.expect(std::all_of(table->data(), table->data() + sizes[0] * sizes[1],
                         [](float x) { return std::isfinite(x); }),
             "rotary tables with values that are not finite");
  }
  std::string path(schema::kRope);
  const auto is_written = [&w](const std::string& name) {
    return h5::has_link(w.out.file(), name);
  };
  w.expect(layer || !is_written(path), "rotary tables are written twice");
  if (layer) {
    const std::string name = std::to_string(*layer);
    path += "/" + name;
    w.expect(parse_layer_name(name) && !is_written(path) &&
                 !is_written(std::string(schema::kRope) + "/cos"),
             "rotary tables of layer {} are out of range or written twice", name);
  }
  const Handle group = w.out.group(w.out.file(), path);
  w.out.attribute(group, "layout", tables.layout == RopeLayout::half ? "half" : "interleaved");
  for (const auto& [spec, table] : {std::pair{h5::kCos, &tables.cos}, {h5::kSin, &tables.sin}}) {
    w.out.checked_dataset(group, spec.name, H5T_IEEE_F32LE, sizes, table->data(),
                          digest(DType::float32, table->data(), sizes[0] * sizes[1]));
  }
}

void TraceWriter::close() {
  const h5::Session session;
  Impl& w = *impl_;
  w.expect(static_cast<bool>(w.out.file()), "closed twice");
  w.finish_layer();
  w.expect(w.layers && !w.bare_prompt, "holds no prompt, or a prompt without layers");
  w.layers.reset();
  w.prompts.reset();
  w.out.write_members();
  w.out.finish();
}

}  // namespace kvbench
