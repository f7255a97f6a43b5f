#include "trace/structure.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <filesystem>
#include <fstream>
#include <system_error>
#include <utility>

#include "core/error.hpp"
#include "trace/dataset.hpp"
#include "trace/projection.hpp"
#include "trace/rope_tables.hpp"

namespace kvbench::h5 {

namespace {

std::optional<double> read_scale(hid_t object, const Place& where) {
  const auto scale = optional_float(object, "scale", where);
  if (scale && !(std::isfinite(*scale) && *scale > 0)) {
    where.refuse(fmt::format("attribute scale is {}, expected a finite number > 0", *scale));
  }
  return scale;
}

void read_root(hid_t file, const Place& root, TraceMeta& meta) {
  const std::string format = required_string(file, "format", root);
  if (format != schema::kFormat) {
    root.refuse(fmt::format("attribute format is \"{}\", expected \"{}\"", one_line(format),
                            schema::kFormat));
  }
  const std::int64_t version = required_int(file, "version", root);
  if (version != schema::kVersion) {
    root.refuse(fmt::format("attribute version is {}, expected {}", version, schema::kVersion));
  }
  const std::string dtype = required_string(file, "dtype", root);
  const auto parsed = parse_dtype(dtype);
  if (!parsed) {
    root.refuse(
        fmt::format("attribute dtype is \"{}\", expected \"float16\", \"bfloat16\" or \"float32\"",
                    one_line(dtype)));
  }
  meta.dtype = *parsed;
  meta.rope = required_string(file, "rope", root);
  if (meta.rope == schema::kRopePre) {
    root.refuse(
        "attribute rope is \"pre\", expected \"post\" or \"none\": keys and queries must be stored "
        "as the attention sees them, after the rotation");
  }
  if (meta.rope != schema::kRopePost && meta.rope != schema::kRopeNone) {
    root.refuse(fmt::format("attribute rope is \"{}\", expected \"post\" or \"none\"",
                            one_line(meta.rope)));
  }
  meta.scale = read_scale(file, root);
  // Descriptions, which nothing computes with.
  meta.model = optional_string(file, "model", root).value_or("");
  meta.source = optional_string(file, "source", root).value_or("");
  meta.created = optional_string(file, "created", root).value_or("");
}

// An attribute q_start may stand on the layer or on its q.
void check_q_start(hid_t object, const Place& where, const LayerMeta& layer) {
  const auto q_start = optional_int(object, "q_start", where);
  if (q_start && *q_start != layer.n - layer.nq) {
    where.refuse(
        fmt::format("attribute q_start is {}, expected n - nq = {}", *q_start, layer.n - layer.nq));
  }
}

void check_values_shape(const Tensor& v, const Tensor& k) {
  if (v.heads != k.heads || v.rows != k.rows) {
    v.where.refuse(fmt::format("shape is [{}, {}, {}], expected [{}, {}, dv] as in k", v.heads,
                               v.rows, v.width, k.heads, k.rows));
  }
}

void check_queries_shape(const Tensor& q, const Tensor& k) {
  if (q.width != k.width) {
    q.where.refuse(fmt::format("width is {}, expected {} as in k", q.width, k.width));
  }
  if (q.rows > k.rows) {
    q.where.refuse(
        fmt::format("holds {} queries, expected at most {}, one per token", q.rows, k.rows));
  }
  if (q.heads % k.heads != 0) {
    q.where.refuse(fmt::format("has {} query heads, expected a multiple of the {} KV heads",
                               q.heads, k.heads));
  }
}

// q or v of a layer that has its k; absent where that is allowed.
std::optional<Tensor> open_beside_keys(hid_t layer, const char* name, const Place& where,
                                       DType dtype, Require require) {
  if (has_link(layer, name)) {
    return open_tensor(layer, name, dtype, where);
  }
  if (require == Require::all) {
    (where / name)
        .refuse(
            "dataset is missing, expected q, k and v in every layer (a trace of keys alone serves "
            "kvbench cluster and info)");
  }
  return std::nullopt;
}

LayerMeta read_layer(hid_t layers, const std::string& name, const Place& parent, Index n_tokens,
                     const TraceMeta& meta, Require require) {
  const Place where = parent / name;
  const auto index = parse_layer_name(name);
  if (!index) {
    where.refuse("layer name is not an index, expected decimal digits without leading zeros");
  }
  const Handle group = open_group(layers, name, where);
  const Tensor k = open_tensor(group.get(), "k", meta.dtype, where);
  const auto q = open_beside_keys(group.get(), "q", where, meta.dtype, require);
  const auto v = open_beside_keys(group.get(), "v", where, meta.dtype, require);
  if (k.rows != n_tokens) {
    k.where.refuse(
        fmt::format("holds {} tokens, expected the prompt's n_tokens = {}", k.rows, n_tokens));
  }
  LayerMeta layer;
  layer.layer = *index;
  layer.kv_heads = k.heads;
  layer.n = k.rows;
  layer.d = k.width;
  if (v) {
    check_values_shape(*v, k);
    layer.dv = v->width;
  }
  if (q) {
    check_queries_shape(*q, k);
    layer.q_heads = q->heads;
    layer.nq = q->rows;
    check_q_start(group.get(), where, layer);
    check_q_start(q->id.get(), q->where, layer);
  }
  const auto own = read_scale(group.get(), where);
  const auto given = own ? own : meta.scale;
  layer.scale = given ? *given : 1.0 / std::sqrt(static_cast<double>(layer.d));
  layer.fisher = optional_float(group.get(), "fisher", where);
  if (layer.fisher && !(std::isfinite(*layer.fisher) && *layer.fisher >= 0)) {
    where.refuse(
        fmt::format("attribute fisher is {}, expected a finite number >= 0", *layer.fisher));
  }
  read_projection_structure(group.get(), where, meta.dtype, layer);
  layer.retrieval_heads = optional_flags(group.get(), "retrieval_heads", layer.kv_heads, where);
  return layer;
}

void check_token_ids(hid_t prompt, const Place& parent, Index n_tokens) {
  const Place where = parent / schema::kTokenIds;
  const Handle ids = open_dataset(prompt, schema::kTokenIds, where);
  const Handle type(H5Dget_type(ids.get()), H5Tclose);
  if (!type || H5Tget_class(type.get()) != H5T_INTEGER) {
    where.refuse("elements are no integers, expected int32");
  }
  const Handle space(H5Dget_space(ids.get()), H5Sclose);
  const int rank = space ? H5Sget_simple_extent_ndims(space.get()) : -1;
  if (rank != 1) {
    where.refuse(fmt::format("rank is {}, expected 1: [n_tokens]", std::max(rank, 0)));
  }
  hsize_t size = 0;
  H5Sget_simple_extent_dims(space.get(), &size, nullptr);
  if (size != static_cast<hsize_t>(n_tokens)) {
    where.refuse(fmt::format("holds {} ids, expected n_tokens = {}", size, n_tokens));
  }
  const std::uint64_t width = H5Tget_size(type.get());
  std::uint64_t bytes = 0;
  if (__builtin_mul_overflow(width, static_cast<std::uint64_t>(size), &bytes)) {
    where.refuse(fmt::format("holds {} ids, expected a size that fits memory", size));
  }
  check_storage(ids.get(), bytes, file_size_of(ids.get()), where);
}

PromptMeta read_prompt(hid_t prompts, const std::string& id, const Place& parent,
                       const TraceMeta& meta, Require require) {
  const Place where = parent / id;
  const Handle group = open_group(prompts, id, where);
  PromptMeta prompt;
  prompt.id = id;
  prompt.n_tokens = required_int(group.get(), "n_tokens", where);
  if (prompt.n_tokens < 1) {
    where.refuse(fmt::format("attribute n_tokens is {}, expected at least 1", prompt.n_tokens));
  }
  prompt.text_id = optional_string(group.get(), "text_id", where).value_or("");
  prompt.has_token_ids = has_link(group.get(), schema::kTokenIds);
  const Place below = where / schema::kLayers;
  const Handle layers = open_group(group.get(), schema::kLayers, below);
  for (const std::string& name : link_names(layers.get(), below)) {
    prompt.layers.push_back(read_layer(layers.get(), name, below, prompt.n_tokens, meta, require));
  }
  if (prompt.layers.empty()) {
    below.refuse("holds no layers, expected at least one");
  }
  std::sort(prompt.layers.begin(), prompt.layers.end(),
            [](const LayerMeta& a, const LayerMeta& b) { return a.layer < b.layer; });
  if (prompt.has_token_ids) {
    check_token_ids(group.get(), where, prompt.n_tokens);
  }
  return prompt;
}

// Tells a file that lost its end from one that never was HDF5: the signature stands at byte 0, or
// at 512 and its doublings behind a user block.
bool has_signature(const std::string& path) {
  constexpr std::array<char, 8> kSignature{'\x89', 'H', 'D', 'F', '\r', '\n', '\x1a', '\n'};
  std::ifstream file(path, std::ios::binary);
  for (std::streamoff offset = 0; file; offset = offset == 0 ? 512 : 2 * offset) {
    std::array<char, 8> head{};
    file.seekg(offset);
    if (file.read(head.data(), head.size()) && head == kSignature) {
      return true;
    }
  }
  return false;
}

}  // namespace

Handle open_file(const std::string& path) {
  std::error_code failed;
  const auto status = std::filesystem::status(path, failed);
  if (!std::filesystem::exists(status)) {
    throw InputError(one_line(fmt::format("{}: cannot be opened: no such file", path)));
  }
  // Opening a pipe would wait for its writer.
  if (!std::filesystem::is_regular_file(status)) {
    throw InputError(
        one_line(fmt::format("{}: is a directory or device, expected an HDF5 trace file", path)));
  }
  if (!std::ifstream(path, std::ios::binary)) {
    throw InputError(one_line(fmt::format("{}: cannot be opened: no permission to read", path)));
  }
  const Handle access(H5Pcreate(H5P_FILE_ACCESS), H5Pclose);
  // File systems without locks must not stop a reader.
  H5Pset_file_locking(access.get(), 1, 1);
  // Every chunk is read once, so a cache of chunks would only hold memory.
  H5Pset_cache(access.get(), 0, 0, 0, 0.0);
  Handle file(H5Fopen(path.c_str(), H5F_ACC_RDONLY, access.get()), H5Fclose);
  if (!file) {
    const std::string reason = last_error();
    if (!has_signature(path)) {
      throw InputError(one_line(fmt::format(
          "{}: is not HDF5, expected a trace written as docs/trace_format.md says", path)));
    }
    throw InputError(one_line(fmt::format(
        "{}: HDF5 file is truncated or damaged, expected a complete one ({})", path, reason)));
  }
  return file;
}

TraceMeta read_structure(hid_t file, const std::string& path, Require require) {
  TraceMeta meta;
  meta.path = path;
  std::error_code failed;
  meta.file_bytes = std::filesystem::file_size(path, failed);
  const Place root{path, "/"};
  read_root(file, root, meta);
  const Place below = root / schema::kPrompts;
  const Handle prompts = open_group(file, schema::kPrompts, below);
  for (const std::string& id : link_names(prompts.get(), below)) {
    meta.prompts.push_back(read_prompt(prompts.get(), id, below, meta, require));
  }
  if (meta.prompts.empty()) {
    below.refuse("holds no prompts, expected at least one");
  }
  read_rope_structure(file, root, meta);
  return meta;
}

std::string layer_path(const PromptMeta& prompt, const LayerMeta& layer) {
  return fmt::format("/{}/{}/{}/{}", schema::kPrompts, prompt.id, schema::kLayers, layer.layer);
}

}  // namespace kvbench::h5
