#include "trace/writer.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdio>
#include <filesystem>
#include <new>
#include <system_error>
#include <utility>

#include "core/float16.hpp"
#include "trace/chunk_write.hpp"
#include "trace/schema.hpp"
#include "trace/writer_impl.hpp"

namespace kvbench {

using h5::Handle;
using h5::Output;

namespace {

// HDF5 cannot hold a chunk of 4 GiB or more.
constexpr Index kMaxChunkBytes = Index{1} << 31;
constexpr Index kMaxSize = Index{1} << 40;

}  // namespace

TraceWriter::Impl::~Impl() {
  if (!file) {
    return;
  }
  const h5::Silence silence;
  q.id.reset();
  k.id.reset();
  v.id.reset();
  layer_group.reset();
  layers.reset();
  prompts.reset();
  file.reset();
  std::remove(partial.c_str());
}

void TraceWriter::Impl::attribute(hid_t object, const char* name, hid_t type, hid_t memory,
                                  const void* value, hsize_t count) const {
  const Handle space(count == 0 ? H5Screate(H5S_SCALAR) : H5Screate_simple(1, &count, nullptr),
                     H5Sclose);
  const Handle a(H5Acreate2(object, name, type, space.get(), H5P_DEFAULT, H5P_DEFAULT), H5Aclose);
  if (!a || H5Awrite(a.get(), memory, value) < 0) {
    fail(fmt::format("attribute {}", name));
  }
}

void TraceWriter::Impl::string_attribute(hid_t object, const char* name,
                                         std::string_view text) const {
  // Variable length, UTF-8: what h5py hands out as str and not as bytes.
  const std::string value(text);
  const char* start = value.c_str();
  const Handle type(H5Tcopy(H5T_C_S1), H5Tclose);
  H5Tset_size(type.get(), H5T_VARIABLE);
  H5Tset_cset(type.get(), H5T_CSET_UTF8);
  attribute(object, name, type.get(), type.get(), &start);
}

Handle TraceWriter::Impl::group(hid_t parent, const std::string& name) const {
  Handle g(H5Gcreate2(parent, name.c_str(), H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT), H5Gclose);
  if (!g) {
    fail(fmt::format("group {}", name));
  }
  return g;
}

Output TraceWriter::Impl::create(hid_t parent, const char* name, Index heads, Index rows,
                                 Index width) const {
  const Index chunk_rows = std::min(rows, schema::kMaxChunkTokens);
  Index total = bytes_per_element(header.dtype);
  for (const Index size : {heads, rows, width}) {
    if (size < 1 || size > kMaxSize || __builtin_mul_overflow(total, size, &total)) {
      misuse(
          fmt::format("{} has shape [{}, {}, {}], expected sizes of at least 1 whose product "
                      "fits memory",
                      name, heads, rows, width));
    }
  }
  if (width > kMaxChunkBytes / (chunk_rows * bytes_per_element(header.dtype))) {
    misuse(fmt::format("{} has width {}, expected a chunk below 2 GiB", name, width));
  }
  Output out;
  out.name = name;
  out.shape = {heads, rows, width};
  out.written.assign(static_cast<std::size_t>(heads), false);
  const std::array<hsize_t, 3> dims{static_cast<hsize_t>(heads), static_cast<hsize_t>(rows),
                                    static_cast<hsize_t>(width)};
  const std::array<hsize_t, 3> chunk{1, static_cast<hsize_t>(chunk_rows),
                                     static_cast<hsize_t>(width)};
  const Handle space(H5Screate_simple(3, dims.data(), nullptr), H5Sclose);
  const Handle plist(H5Pcreate(H5P_DATASET_CREATE), H5Pclose);
  H5Pset_chunk(plist.get(), 3, chunk.data());
  H5Pset_obj_track_times(plist.get(), false);  // the same options give the same bytes
  H5Pset_fill_time(plist.get(), H5D_FILL_TIME_NEVER);
  if (header.gzip_level > 0) {
    H5Pset_shuffle(plist.get());
    H5Pset_deflate(plist.get(), static_cast<unsigned>(header.gzip_level));
  }
  const Handle type = h5::file_type(header.dtype);
  out.id = Handle(
      H5Dcreate2(parent, name, type.get(), space.get(), H5P_DEFAULT, plist.get(), H5P_DEFAULT),
      H5Dclose);
  if (!out.id) {
    fail(fmt::format("dataset {}", name));
  }
  return out;
}

void TraceWriter::Impl::check_finite(std::string_view what, MatrixView m) const {
  for (Index i = 0; i < m.rows * m.cols; ++i) {
    if (!std::isfinite(round_to(header.dtype, m.data[i]))) {
      misuse(fmt::format("{}, row {}: {} is not finite as {}", what, i / m.cols, m.data[i],
                         name(header.dtype)));
    }
  }
}

void TraceWriter::Impl::write(Output& out, Index head, MatrixView m) {
  const h5::Silence silence;
  if (!layer) {
    misuse(fmt::format("{} written before begin_layer", out.name));
  }
  if (head < 0 || head >= out.shape[0] || out.written[static_cast<std::size_t>(head)]) {
    misuse(fmt::format("{} head {} is out of range or written twice, expected 0 <= head < {}",
                       out.name, head, out.shape[0]));
  }
  if (m.rows != out.shape[1] || m.cols != out.shape[2]) {
    misuse(fmt::format("{} head {} has shape [{}, {}], expected [{}, {}]", out.name, head, m.rows,
                       m.cols, out.shape[1], out.shape[2]));
  }
  check_finite(fmt::format("{} head {}", out.name, head), m);
  const Index chunk_rows = std::min(out.shape[1], schema::kMaxChunkTokens);
  std::vector<std::vector<std::uint8_t>> chunks;
  try {
    chunks = h5::encode_head(m, chunk_rows, header.dtype, header.gzip_level);
  } catch (const std::bad_alloc&) {
    throw IoError(h5::one_line(fmt::format("{}: not enough memory for {}", partial, out.name)));
  }
  for (std::size_t i = 0; i < chunks.size(); ++i) {
    const std::array<hsize_t, 3> offset{static_cast<hsize_t>(head),
                                        i * static_cast<hsize_t>(chunk_rows), 0};
    if (H5Dwrite_chunk(out.id.get(), H5P_DEFAULT, 0, offset.data(), chunks[i].size(),
                       chunks[i].data()) < 0) {
      fail(fmt::format("{} head {}", out.name, head));
    }
  }
  out.written[static_cast<std::size_t>(head)] = true;
}

void TraceWriter::Impl::finish_layer() {
  if (!layer) {
    return;
  }
  for (Output* out : {&q, &k, &v}) {
    const auto missing = std::find(out->written.begin(), out->written.end(), false);
    if (missing != out->written.end()) {
      misuse(fmt::format("layer {}: {} head {} was never written", layer->layer, out->name,
                         missing - out->written.begin()));
    }
    if (!out->id.reset()) {
      fail(fmt::format("layer {}: {}", layer->layer, out->name));
    }
  }
  layer_group.reset();
  layer.reset();
}

TraceWriter::TraceWriter(const std::string& path, const TraceHeader& header)
    : impl_(std::make_unique<Impl>()) {
  const h5::Silence silence;
  impl_->path = path;
  impl_->partial = path + ".tmp";
  impl_->header = header;
  if (header.rope != schema::kRopePost && header.rope != schema::kRopeNone) {
    impl_->misuse(
        fmt::format("rope is \"{}\", expected \"post\" or \"none\"", h5::one_line(header.rope)));
  }
  if (header.scale && !(std::isfinite(*header.scale) && *header.scale > 0)) {
    impl_->misuse(fmt::format("scale is {}, expected a finite number > 0", *header.scale));
  }
  if (header.gzip_level < 0 || header.gzip_level > 9) {
    impl_->misuse(fmt::format("gzip level is {}, expected 0 to 9", header.gzip_level));
  }
  impl_->file =
      Handle(H5Fcreate(impl_->partial.c_str(), H5F_ACC_TRUNC, H5P_DEFAULT, H5P_DEFAULT), H5Fclose);
  if (!impl_->file) {
    impl_->fail("file");
  }
  const hid_t root = impl_->file.get();
  impl_->string_attribute(root, "format", schema::kFormat);
  impl_->attribute(root, "version", H5T_STD_I64LE, H5T_NATIVE_INT64, &schema::kVersion);
  impl_->string_attribute(root, "model", header.model);
  impl_->string_attribute(root, "source", header.source);
  impl_->string_attribute(root, "created", header.created);
  impl_->string_attribute(root, "dtype", name(header.dtype));
  impl_->string_attribute(root, "rope", header.rope);
  if (header.scale) {
    impl_->attribute(root, "scale", H5T_IEEE_F64LE, H5T_NATIVE_DOUBLE, &*header.scale);
  }
  impl_->prompts = impl_->group(root, std::string(schema::kPrompts));
}

TraceWriter::~TraceWriter() = default;
TraceWriter::TraceWriter(TraceWriter&&) noexcept = default;
TraceWriter& TraceWriter::operator=(TraceWriter&&) noexcept = default;

void TraceWriter::begin_prompt(const std::string& id, Index n_tokens, const std::string& text_id,
                               std::span<const std::int32_t> token_ids) {
  const h5::Silence silence;
  Impl& w = *impl_;
  w.finish_layer();
  if (w.any_prompt && !w.prompt_has_layer) {
    w.misuse("a prompt has no layers");
  }
  if (id.empty() || id == "." || id.find('/') != std::string::npos ||
      id.find('\0') != std::string::npos || h5::has_link(w.prompts.get(), id)) {
    w.misuse(fmt::format("prompt id \"{}\" is empty, \".\", has a slash or is taken", id));
  }
  if (n_tokens < 1 || n_tokens > kMaxSize) {
    w.misuse(fmt::format("n_tokens is {}, expected at least 1", n_tokens));
  }
  if (!token_ids.empty() && static_cast<Index>(token_ids.size()) != n_tokens) {
    w.misuse(fmt::format("{} token ids, expected n_tokens = {}", token_ids.size(), n_tokens));
  }
  const Handle prompt = w.group(w.prompts.get(), id);
  w.attribute(prompt.get(), "n_tokens", H5T_STD_I64LE, H5T_NATIVE_INT64, &n_tokens);
  if (!text_id.empty()) {
    w.string_attribute(prompt.get(), "text_id", text_id);
  }
  if (!token_ids.empty()) {
    const hsize_t size = token_ids.size();
    const Handle space(H5Screate_simple(1, &size, nullptr), H5Sclose);
    const Handle plist(H5Pcreate(H5P_DATASET_CREATE), H5Pclose);
    H5Pset_obj_track_times(plist.get(), false);
    const Handle ids(H5Dcreate2(prompt.get(), std::string(schema::kTokenIds).c_str(), H5T_STD_I32LE,
                                space.get(), H5P_DEFAULT, plist.get(), H5P_DEFAULT),
                     H5Dclose);
    if (!ids || H5Dwrite(ids.get(), H5T_NATIVE_INT32, H5S_ALL, H5S_ALL, H5P_DEFAULT,
                         token_ids.data()) < 0) {
      w.fail("token_ids");
    }
  }
  w.layers = w.group(prompt.get(), std::string(schema::kLayers));
  w.n = n_tokens;
  w.any_prompt = true;
  w.prompt_has_layer = false;
}

void TraceWriter::begin_layer(const LayerSpec& layer) {
  const h5::Silence silence;
  Impl& w = *impl_;
  w.finish_layer();
  if (!w.any_prompt) {
    w.misuse("begin_layer before begin_prompt");
  }
  const std::string name = std::to_string(layer.layer);
  if (!parse_layer_name(name) || h5::has_link(w.layers.get(), name)) {
    w.misuse(fmt::format("layer {} is out of range or written twice", name));
  }
  if (layer.kv_heads < 1 || layer.q_heads < 1 || layer.q_heads % layer.kv_heads != 0) {
    w.misuse(fmt::format("layer {}: {} query heads, expected a multiple of the {} KV heads", name,
                         layer.q_heads, layer.kv_heads));
  }
  if (layer.nq < 1 || layer.nq > w.n) {
    w.misuse(fmt::format("layer {}: nq is {}, expected 1 to n = {}", name, layer.nq, w.n));
  }
  if (layer.scale && !(std::isfinite(*layer.scale) && *layer.scale > 0)) {
    w.misuse(
        fmt::format("layer {}: scale is {}, expected a finite number > 0", name, *layer.scale));
  }
  if (layer.fisher && !(std::isfinite(*layer.fisher) && *layer.fisher >= 0)) {
    w.misuse(
        fmt::format("layer {}: fisher is {}, expected a finite number >= 0", name, *layer.fisher));
  }
  if (!layer.retrieval_heads.empty() &&
      static_cast<Index>(layer.retrieval_heads.size()) != layer.kv_heads) {
    w.misuse(fmt::format("layer {}: {} retrieval flags, expected {}", name,
                         layer.retrieval_heads.size(), layer.kv_heads));
  }
  w.layer_group = w.group(w.layers.get(), name);
  const Handle& group = w.layer_group;
  w.q = w.create(group.get(), "q", layer.q_heads, layer.nq, layer.d);
  w.k = w.create(group.get(), "k", layer.kv_heads, w.n, layer.d);
  w.v = w.create(group.get(), "v", layer.kv_heads, w.n, layer.dv);
  if (layer.scale) {
    w.attribute(group.get(), "scale", H5T_IEEE_F64LE, H5T_NATIVE_DOUBLE, &*layer.scale);
  }
  if (layer.fisher) {
    w.attribute(group.get(), "fisher", H5T_IEEE_F64LE, H5T_NATIVE_DOUBLE, &*layer.fisher);
  }
  if (!layer.retrieval_heads.empty()) {
    w.attribute(group.get(), "retrieval_heads", H5T_STD_U8LE, H5T_NATIVE_UINT8,
                layer.retrieval_heads.data(), layer.retrieval_heads.size());
  }
  w.layer = layer;
  w.prompt_has_layer = true;
}

void TraceWriter::write_q(Index q_head, MatrixView q) {
  impl_->write(impl_->q, q_head, q);
}

void TraceWriter::write_k(Index kv_head, MatrixView k) {
  impl_->write(impl_->k, kv_head, k);
}

void TraceWriter::write_v(Index kv_head, MatrixView v) {
  impl_->write(impl_->v, kv_head, v);
}

void TraceWriter::close() {
  const h5::Silence silence;
  Impl& w = *impl_;
  if (!w.file) {
    w.misuse("closed twice");
  }
  w.finish_layer();
  if (!w.any_prompt || !w.prompt_has_layer) {
    w.misuse("holds no prompt, or a prompt without layers");
  }
  const bool flushed = H5Fflush(w.file.get(), H5F_SCOPE_LOCAL) >= 0;
  const bool closed = w.layers.reset() && w.prompts.reset() && w.file.reset();
  if (!flushed || !closed) {
    const std::string reason = h5::last_error();
    w.file.reset();
    std::remove(w.partial.c_str());
    throw IoError(h5::one_line(fmt::format("{}: cannot be finished ({})", w.partial, reason)));
  }
  std::error_code failed;
  std::filesystem::rename(w.partial, w.path, failed);
  if (failed) {
    std::remove(w.partial.c_str());
    throw IoError(h5::one_line(
        fmt::format("{}: cannot be renamed from {} ({})", w.path, w.partial, failed.message())));
  }
}

}  // namespace kvbench
