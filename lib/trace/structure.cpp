#include "trace/structure.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <map>
#include <span>
#include <utility>

#include "trace/structure_extra.hpp"

namespace kvbench::h5 {

namespace {

std::optional<double> read_scale(const Hdf5Object& at) {
  const auto scale = optional_float(at, "scale");
  if (scale && !(std::isfinite(*scale) && *scale > 0)) {
    at.where.refuse("attribute scale is {}, expected a finite number > 0", *scale);
  }
  return scale;
}

void read_root(const Hdf5Object& root, TraceMeta& meta) {
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
  meta.model = optional_string(root, "model").value_or("");
  meta.source = optional_string(root, "source").value_or("");
  meta.created = optional_string(root, "created").value_or("");
}

// The attribute may be of the layer or of its q.
void check_q_start(const Hdf5Object& at, const LayerMeta& layer) {
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

// q or v of a layer, or null.
const Tensor* add_beside_keys(const Hdf5Object& layer, LayerTensor what, Structure& out,
                              Require require) {
  const Spec spec = rows_spec(what);
  if (has_link(layer, spec.name)) {
    return &out.add(layer, spec);
  }
  if (require == Require::all) {
    (layer.where / spec.name)
        .refuse(
            "dataset is missing, expected q, k and v in every layer (a trace of keys alone serves "
            "kvbench cluster and info)");
  }
  return nullptr;
}

// o_proj and residual_norm, both optional. Without q both are ignored, without v o_proj is.
void read_projection(const Hdf5Object& group, Structure& out, LayerMeta& layer) {
  if (!layer.has(LayerTensor::queries)) {
    return;
  }
  if (layer.has(LayerTensor::values) && has_link(group, kOProj.name)) {
    const Tensor& w = out.add(group, kOProj);
    // A quotient, because the product may overflow.
    if (w.width() % layer.dv != 0 || w.width() / layer.dv != layer.q_heads) {
      w.where.refuse("shape is [{}, {}], expected [hidden, {} * {}]: query heads times width of v",
                     w.rows(), w.width(), layer.q_heads, layer.dv);
    }
    layer.hidden = w.rows();
  }
  if (has_link(group, kResidualNorm.name)) {
    const Tensor& norms = out.add(group, kResidualNorm);
    if (norms.width() != layer.nq) {
      norms.where.refuse("holds {} norms, expected nq = {}", norms.width(), layer.nq);
    }
    layer.has_residual_norm = true;
  }
}

LayerMeta read_layer(const Hdf5Object& layers, const std::string& name, Index n_tokens,
                     Structure& out, Require require) {
  const auto index = parse_layer_name(name);
  if (!index) {
    (layers.where / name)
        .refuse("layer name is not an index, expected decimal digits without leading zeros");
  }
  const Hdf5Object group = open_group(layers, name);
  check_members(group, {"q", "k", "v", schema::kOProj, schema::kResidualNorm, schema::kExtra,
                        schema::kScores});
  const Tensor& k = out.add(group, rows_spec(LayerTensor::keys));
  const Tensor* q = add_beside_keys(group, LayerTensor::queries, out, require);
  const Tensor* v = add_beside_keys(group, LayerTensor::values, out, require);
  if (k.rows() != n_tokens) {
    k.where.refuse("holds {} tokens, expected the prompt's n_tokens = {}", k.rows(), n_tokens);
  }
  LayerMeta layer;
  layer.layer = *index;
  layer.kv_heads = k.heads();
  layer.n = k.rows();
  layer.d = k.width();
  if (v != nullptr) {
    check_values_shape(*v, k);
    layer.dv = v->width();
  }
  if (q != nullptr) {
    check_queries_shape(*q, k);
    layer.q_heads = q->heads();
    layer.nq = q->rows();
    check_q_start(group, layer);
    check_q_start(open_dataset(group, rows_spec(LayerTensor::queries).name), layer);
  }
  const auto own = read_scale(group);
  layer.scale = own              ? *own
                : out.meta.scale ? *out.meta.scale
                                 : 1.0 / std::sqrt(static_cast<double>(layer.d));
  layer.fisher = optional_float(group, "fisher");
  if (layer.fisher && !(std::isfinite(*layer.fisher) && *layer.fisher >= 0)) {
    group.where.refuse("attribute fisher is {}, expected a finite number >= 0", *layer.fisher);
  }
  read_projection(group, out, layer);
  read_extra(group, out, layer);
  read_scores(group, out, layer);
  layer.retrieval_heads = optional_flags(group, "retrieval_heads", layer.kv_heads);
  layer.window = optional_int(group, "window");
  if (layer.window && *layer.window < 1) {
    group.where.refuse("attribute window is {}, expected at least 1", *layer.window);
  }
  layer.shares_cache_of = optional_int(group, "shares_cache_of");
  if (q != nullptr) {
    layer.sink_logit = optional_floats(group, "sink_logit", layer.q_heads);
  }
  return layer;
}

// `earlier`: the layers of the prompt before this one, ascending.
void check_shared_cache(std::span<const LayerMeta> earlier, const LayerMeta& layer,
                        const Place& where) {
  if (!layer.shares_cache_of) {
    return;
  }
  const auto owner = std::ranges::find(earlier, *layer.shares_cache_of, &LayerMeta::layer);
  if (owner == earlier.end() || owner->shares_cache_of) {
    where.refuse(
        "attribute shares_cache_of is {}, expected an earlier layer of the prompt that "
        "has a cache of its own",
        *layer.shares_cache_of);
  }
  const auto shape = [](const LayerMeta& l) { return std::array{l.kv_heads, l.n, l.d, l.dv}; };
  if (shape(*owner) != shape(layer)) {
    where.refuse(
        "attribute shares_cache_of is {}, a layer of [kv_heads, n, d, dv] = [{}], expected [{}]",
        owner->layer, fmt::join(shape(*owner), ", "), fmt::join(shape(layer), ", "));
  }
}

PromptMeta read_prompt(const Hdf5Object& prompts, const std::string& id, Structure& out,
                       Require require) {
  const Hdf5Object group = open_group(prompts, id);
  check_members(group, {schema::kTokenIds, schema::kLayers});
  PromptMeta prompt;
  prompt.id = id;
  prompt.n_tokens = required_int(group, "n_tokens");
  if (prompt.n_tokens < 1) {
    group.where.refuse("attribute n_tokens is {}, expected at least 1", prompt.n_tokens);
  }
  prompt.text_id = optional_string(group, "text_id").value_or("");
  prompt.has_token_ids = has_link(group, schema::kTokenIds);
  const Hdf5Object layers = open_group(group, schema::kLayers);
  check_members(layers);
  const std::vector<std::string> names = link_names(layers);
  if (names.size() > out.left.layers) {
    layers.where.refuse("holds {} layers, expected at most {} more in the trace", names.size(),
                        out.left.layers);
  }
  out.left.layers -= names.size();
  for (const std::string& name : names) {
    prompt.layers.push_back(read_layer(layers, name, prompt.n_tokens, out, require));
  }
  if (prompt.layers.empty()) {
    layers.where.refuse("holds no layers, expected at least one");
  }
  std::ranges::sort(prompt.layers, {}, &LayerMeta::layer);
  for (std::size_t l = 0; l < prompt.layers.size(); ++l) {
    check_shared_cache(std::span(prompt.layers).first(l), prompt.layers[l],
                       layers.where / std::to_string(prompt.layers[l].layer));
  }
  if (prompt.has_token_ids) {
    out.add(open_integers(group, schema::kTokenIds, prompt.n_tokens, "ids", "n_tokens"));
  }
  return prompt;
}

struct Tables {
  Place where;
  Index positions = 0;
  Index pairs = 0;
};

Tables read_tables(const Hdf5Object& group, Structure& out) {
  const std::string layout = required_string(group, "layout");
  if (layout != "half" && layout != "interleaved") {
    group.where.refuse("attribute layout is \"{}\", expected \"half\" or \"interleaved\"", layout);
  }
  out.rope_layouts[group.where.path] =
      layout == "half" ? RopeLayout::half : RopeLayout::interleaved;
  const Tensor& cos = out.add(group, kCos);
  const Tensor& sin = out.add(group, kSin);
  if (sin.sizes != cos.sizes) {
    sin.where.refuse("shape is [{}], expected [{}] as cos has", fmt::join(sin.sizes, ", "),
                     fmt::join(cos.sizes, ", "));
  }
  return {group.where, cos.rows(), cos.width()};
}

void assign_tables(const Tables& tables, LayerMeta& layer) {
  if (2 * tables.pairs > layer.d) {
    tables.where.refuse("turns {} channels, expected at most the {} of layer {}", 2 * tables.pairs,
                        layer.d, layer.layer);
  }
  const Index needed = layer.n + schema::kRopeAhead;
  if (tables.positions < needed) {
    tables.where.refuse("holds {} positions, expected at least n + {} = {} of layer {}",
                        tables.positions, schema::kRopeAhead, needed, layer.layer);
  }
  layer.rope_positions = tables.positions;
  layer.rope_dim = 2 * tables.pairs;
  layer.rope_path = tables.where.path;
}

void read_rope(const Hdf5Object& root, Structure& out) {
  if (!has_link(root, schema::kRope)) {
    return;
  }
  if (out.meta.rope != schema::kRopePost) {
    (root.where / schema::kRope)
        .refuse("holds rotary tables, expected none where attribute rope is \"{}\"", out.meta.rope);
  }
  const Hdf5Object group = open_group(root, schema::kRope);
  check_members(group);
  std::optional<Tables> shared;
  std::map<Index, Tables> own;
  if (has_link(group, kCos.name)) {
    shared = read_tables(group, out);
  } else {
    for (const std::string& name : link_names(group)) {
      const auto layer = parse_layer_name(name);
      if (!layer) {
        (group.where / name)
            .refuse("is no layer's index, expected cos and sin, or a group for each layer");
      }
      own[*layer] = read_tables(open_group(group, name), out);
    }
    if (own.empty()) {
      group.where.refuse("is empty, expected cos and sin, or a group for each layer");
    }
  }
  for (PromptMeta& prompt : out.meta.prompts) {
    for (LayerMeta& layer : prompt.layers) {
      // A layer without tables does not rotate.
      const auto found = own.find(layer.layer);
      if (shared || found != own.end()) {
        assign_tables(shared ? *shared : found->second, layer);
      }
    }
  }
}

}  // namespace

Structure read_structure(const Hdf5Object& root, Require require, const Limits& limits) {
  Structure out;
  out.left = limits;
  TraceMeta& meta = out.meta;
  meta.path = root.where.file;
  meta.file_bytes = root.file->bytes();
  read_root(root, meta);
  check_members(root, {schema::kPrompts, schema::kRope});
  const Hdf5Object prompts = open_group(root, schema::kPrompts);
  check_members(prompts);
  for (const std::string& id : link_names(prompts)) {
    meta.prompts.push_back(read_prompt(prompts, id, out, require));
  }
  if (meta.prompts.empty()) {
    prompts.where.refuse("holds no prompts, expected at least one");
  }
  read_rope(root, out);
  check_disjoint(root);
  return out;
}

std::string layer_path(const PromptMeta& prompt, const LayerMeta& layer) {
  return fmt::format("/{}/{}/{}/{}", schema::kPrompts, prompt.id, schema::kLayers, layer.layer);
}

}  // namespace kvbench::h5
