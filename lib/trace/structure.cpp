#include "trace/structure.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <filesystem>
#include <fstream>
#include <system_error>

#include "trace/dataset.hpp"

namespace kvbench::h5 {

namespace {

std::optional<double> read_scale(const Object& at) {
  const auto scale = optional_float(at, "scale");
  if (scale && !(std::isfinite(*scale) && *scale > 0)) {
    at.where.refuse("attribute scale is {}, expected a finite number > 0", *scale);
  }
  return scale;
}

void read_root(const Object& root, TraceMeta& meta) {
  const std::string format = required_string(root, "format");
  if (format != schema::kFormat) {
    root.where.refuse("attribute format is \"{}\", expected \"{}\"", format, schema::kFormat);
  }
  const std::int64_t version = required_int(root, "version");
  if (version != schema::kVersion) {
    root.where.refuse("attribute version is {}, expected {}", version, schema::kVersion);
  }
  const std::string dtype = required_string(root, "dtype");
  const auto parsed = parse_dtype(dtype);
  if (!parsed) {
    root.where.refuse(
        "attribute dtype is \"{}\", expected \"float16\", \"bfloat16\" or \"float32\"", dtype);
  }
  meta.dtype = *parsed;
  meta.rope = required_string(root, "rope");
  if (meta.rope == schema::kRopePre) {
    root.where.refuse(
        "attribute rope is \"pre\", expected \"post\" or \"none\": keys and queries must be stored "
        "as the attention sees them, after the rotation");
  }
  if (meta.rope != schema::kRopePost && meta.rope != schema::kRopeNone) {
    root.where.refuse("attribute rope is \"{}\", expected \"post\" or \"none\"", meta.rope);
  }
  meta.scale = read_scale(root);
  // Descriptions, which nothing computes with.
  meta.model = optional_string(root, "model").value_or("");
  meta.source = optional_string(root, "source").value_or("");
  meta.created = optional_string(root, "created").value_or("");
}

// An attribute q_start may stand on the layer or on its q.
void check_q_start(const Object& at, const LayerMeta& layer) {
  const auto q_start = optional_int(at, "q_start");
  if (q_start && *q_start != layer.n - layer.nq) {
    at.where.refuse("attribute q_start is {}, expected n - nq = {}", *q_start, layer.n - layer.nq);
  }
}

void check_values_shape(const Tensor& v, const Tensor& k) {
  if (v.heads() != k.heads() || v.rows() != k.rows()) {
    v.where.refuse("shape is [{}], expected [{}, {}, dv] as in k", fmt::join(v.sizes, ", "),
                   k.heads(), k.rows());
  }
}

void check_queries_shape(const Tensor& q, const Tensor& k) {
  if (q.width() != k.width()) {
    q.where.refuse("width is {}, expected {} as in k", q.width(), k.width());
  }
  if (q.rows() > k.rows()) {
    q.where.refuse("holds {} queries, expected at most {}, one per token", q.rows(), k.rows());
  }
  if (q.heads() % k.heads() != 0) {
    q.where.refuse("has {} query heads, expected a multiple of the {} KV heads", q.heads(),
                   k.heads());
  }
}

// q or v of a layer that has its k; absent where that is allowed.
std::optional<Tensor> open_beside_keys(const Object& layer, Rows what, DType dtype,
                                       Require require) {
  const Spec spec = rows_spec(what);
  if (has_link(layer, spec.name)) {
    return open_tensor(layer, spec, dtype);
  }
  if (require == Require::all) {
    (layer.where / spec.name)
        .refuse(
            "dataset is missing, expected q, k and v in every layer (a trace of keys alone serves "
            "kvbench cluster and info)");
  }
  return std::nullopt;
}

// o_proj and residual_norm, each where it is there. Without q the two mean nothing, and without v
// the first; then they are ignored.
void read_projection(const Object& group, DType dtype, LayerMeta& layer) {
  if (!layer.has(Rows::queries)) {
    return;
  }
  if (layer.has(Rows::values) && has_link(group, kOProj.name)) {
    const Tensor w = open_tensor(group, kOProj, dtype);
    // A quotient, for the product could overflow where the shapes of q and v are not yet plausible.
    if (w.width() % layer.dv != 0 || w.width() / layer.dv != layer.q_heads) {
      w.where.refuse("shape is [{}, {}], expected [hidden, {} * {}]: query heads times width of v",
                     w.rows(), w.width(), layer.q_heads, layer.dv);
    }
    layer.hidden = w.rows();
  }
  if (has_link(group, kResidualNorm.name)) {
    const Tensor norms = open_tensor(group, kResidualNorm, dtype);
    if (norms.width() != layer.nq) {
      norms.where.refuse("holds {} norms, expected nq = {}", norms.width(), layer.nq);
    }
    layer.has_residual_norm = true;
  }
}

LayerMeta read_layer(const Object& layers, const std::string& name, Index n_tokens,
                     const TraceMeta& meta, Require require) {
  const auto index = parse_layer_name(name);
  if (!index) {
    (layers.where / name)
        .refuse("layer name is not an index, expected decimal digits without leading zeros");
  }
  const Object group = open_group(layers, name);
  const Tensor k = open_tensor(group, rows_spec(Rows::keys), meta.dtype);
  const auto q = open_beside_keys(group, Rows::queries, meta.dtype, require);
  const auto v = open_beside_keys(group, Rows::values, meta.dtype, require);
  if (k.rows() != n_tokens) {
    k.where.refuse("holds {} tokens, expected the prompt's n_tokens = {}", k.rows(), n_tokens);
  }
  LayerMeta layer;
  layer.layer = *index;
  layer.kv_heads = k.heads();
  layer.n = k.rows();
  layer.d = k.width();
  if (v) {
    check_values_shape(*v, k);
    layer.dv = v->width();
  }
  if (q) {
    check_queries_shape(*q, k);
    layer.q_heads = q->heads();
    layer.nq = q->rows();
    check_q_start(group, layer);
    check_q_start(*q, layer);
  }
  const auto own = read_scale(group);
  layer.scale = own          ? *own
                : meta.scale ? *meta.scale
                             : 1.0 / std::sqrt(static_cast<double>(layer.d));
  layer.fisher = optional_float(group, "fisher");
  if (layer.fisher && !(std::isfinite(*layer.fisher) && *layer.fisher >= 0)) {
    group.where.refuse("attribute fisher is {}, expected a finite number >= 0", *layer.fisher);
  }
  read_projection(group, meta.dtype, layer);
  layer.retrieval_heads = optional_flags(group, "retrieval_heads", layer.kv_heads);
  return layer;
}

void check_token_ids(const Object& prompt, Index n_tokens) {
  const Object ids = open_dataset(prompt, schema::kTokenIds);
  const Handle type(H5Dget_type(ids), H5Tclose);
  if (!type || H5Tget_class(type) != H5T_INTEGER) {
    ids.where.refuse("elements are no integers, expected int32");
  }
  const std::vector<hsize_t> sizes = sizes_of(ids);
  if (sizes.size() != 1) {
    ids.where.refuse("rank is {}, expected 1: [n_tokens]", sizes.size());
  }
  std::uint64_t bytes = 0;
  if (sizes[0] != static_cast<hsize_t>(n_tokens)) {
    ids.where.refuse("holds {} ids, expected n_tokens = {}", sizes[0], n_tokens);
  }
  if (__builtin_mul_overflow(H5Tget_size(type), sizes[0], &bytes)) {
    ids.where.refuse("holds {} ids, expected a size that fits memory", sizes[0]);
  }
  check_storage(ids, bytes);
}

PromptMeta read_prompt(const Object& prompts, const std::string& id, const TraceMeta& meta,
                       Require require) {
  const Object group = open_group(prompts, id);
  PromptMeta prompt;
  prompt.id = id;
  prompt.n_tokens = required_int(group, "n_tokens");
  if (prompt.n_tokens < 1) {
    group.where.refuse("attribute n_tokens is {}, expected at least 1", prompt.n_tokens);
  }
  prompt.text_id = optional_string(group, "text_id").value_or("");
  prompt.has_token_ids = has_link(group, schema::kTokenIds);
  const Object layers = open_group(group, schema::kLayers);
  for (const std::string& name : link_names(layers)) {
    prompt.layers.push_back(read_layer(layers, name, prompt.n_tokens, meta, require));
  }
  if (prompt.layers.empty()) {
    layers.where.refuse("holds no layers, expected at least one");
  }
  std::ranges::sort(prompt.layers, {}, &LayerMeta::layer);
  if (prompt.has_token_ids) {
    check_token_ids(group, prompt.n_tokens);
  }
  return prompt;
}

// The rotary tables in `group`, given to `layer`, or to all where it is nothing.
void read_tables(const Object& group, std::optional<Index> only, TraceMeta& meta) {
  rope_layout(group);
  const Tensor cos = open_tensor(group, kCos, meta.dtype);
  const Tensor sin = open_tensor(group, kSin, meta.dtype);
  if (sin.sizes != cos.sizes) {
    sin.where.refuse("shape is [{}], expected [{}] as cos has", fmt::join(sin.sizes, ", "),
                     fmt::join(cos.sizes, ", "));
  }
  for (PromptMeta& prompt : meta.prompts) {
    for (LayerMeta& layer : prompt.layers) {
      if (only && layer.layer != *only) {
        continue;
      }
      if (2 * cos.width() > layer.d) {
        group.where.refuse("turns {} channels, expected at most the {} of layer {}",
                           2 * cos.width(), layer.d, layer.layer);
      }
      const Index needed = layer.n + schema::kRopeAhead;
      if (cos.rows() < needed) {
        group.where.refuse("holds {} positions, expected at least n + {} = {} of layer {}",
                           cos.rows(), schema::kRopeAhead, needed, layer.layer);
      }
      layer.rope_positions = cos.rows();
      layer.rope_dim = 2 * cos.width();
      layer.rope_path = group.where.path;
    }
  }
}

void read_rope(const Object& root, TraceMeta& meta) {
  if (!has_link(root, schema::kRope)) {
    return;
  }
  if (meta.rope != schema::kRopePost) {
    (root.where / schema::kRope)
        .refuse("holds rotary tables, expected none where attribute rope is \"{}\"", meta.rope);
  }
  const Object group = open_group(root, schema::kRope);
  if (has_link(group, kCos.name)) {
    read_tables(group, {}, meta);
    return;
  }
  const std::vector<std::string> names = link_names(group);
  if (names.empty()) {
    group.where.refuse("is empty, expected cos and sin, or a group for each layer");
  }
  // A layer without tables does not rotate.
  for (const std::string& name : names) {
    const auto layer = parse_layer_name(name);
    if (!layer) {
      (group.where / name)
          .refuse("is no layer's index, expected cos and sin, or a group for each layer");
    }
    read_tables(open_group(group, name), layer, meta);
  }
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
    raise<InputError>("{}: cannot be opened: no such file", path);
  }
  // Opening a pipe would wait for its writer.
  if (!std::filesystem::is_regular_file(status)) {
    raise<InputError>("{}: is a directory or device, expected an HDF5 trace file", path);
  }
  if (!std::ifstream(path, std::ios::binary)) {
    raise<InputError>("{}: cannot be opened: no permission to read", path);
  }
  const Handle access(H5Pcreate(H5P_FILE_ACCESS), H5Pclose);
  // File systems without locks must not stop a reader.
  H5Pset_file_locking(access, 1, 1);
  // Every chunk is read once, so a cache of chunks would only hold memory.
  H5Pset_cache(access, 0, 0, 0, 0.0);
  Handle file(H5Fopen(path.c_str(), H5F_ACC_RDONLY, access), H5Fclose);
  if (!file) {
    const std::string reason = last_error();
    if (!has_signature(path)) {
      raise<InputError>("{}: is not HDF5, expected a trace written as docs/trace_format.md says",
                        path);
    }
    raise<InputError>("{}: HDF5 file is truncated or damaged, expected a complete one ({})", path,
                      reason);
  }
  return file;
}

TraceMeta read_structure(const Object& root, Require require) {
  TraceMeta meta;
  meta.path = root.where.file;
  std::error_code failed;
  meta.file_bytes = std::filesystem::file_size(meta.path, failed);
  read_root(root, meta);
  const Object prompts = open_group(root, schema::kPrompts);
  for (const std::string& id : link_names(prompts)) {
    meta.prompts.push_back(read_prompt(prompts, id, meta, require));
  }
  if (meta.prompts.empty()) {
    prompts.where.refuse("holds no prompts, expected at least one");
  }
  read_rope(root, meta);
  return meta;
}

std::string layer_path(const PromptMeta& prompt, const LayerMeta& layer) {
  return fmt::format("{}/{}/{}/{}", schema::kPrompts, prompt.id, schema::kLayers, layer.layer);
}

RopeLayout rope_layout(const Object& group) {
  const std::string layout = required_string(group, "layout");
  if (layout != "half" && layout != "interleaved") {
    group.where.refuse("attribute layout is \"{}\", expected \"half\" or \"interleaved\"", layout);
  }
  return layout == "half" ? RopeLayout::half : RopeLayout::interleaved;
}

}  // namespace kvbench::h5
