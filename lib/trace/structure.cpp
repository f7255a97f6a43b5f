#include "trace/structure.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <limits>
#include <map>
#include <span>
#include <utility>

namespace kvbench::h5 {

namespace {

constexpr double kSmallest = std::numeric_limits<double>::denorm_min();
constexpr double kLargest = std::numeric_limits<double>::max();
constexpr Index kMost = std::numeric_limits<Index>::max();

std::optional<double> read_scale(const Hdf5Object& at) {
  return optional_number(at, "scale", kSmallest, kLargest, "a finite number > 0");
}

void read_root(const Hdf5Object& root, TraceMeta& meta) {
  check_format(root, schema::kFormat, schema::kVersion);
  meta.dtype =
      *parse_dtype(one_of(root, "dtype", required_string(root, "dtype"),
                          {name(DType::float16), name(DType::bfloat16), name(DType::float32)}));
  meta.rope = required_string(root, "rope");
  root.where.expect(
      meta.rope != schema::kRopePre,
      "attribute rope is \"pre\", expected \"post\" or \"none\": keys and queries must be stored "
      "as the attention sees them, after the rotation");
  one_of(root, "rope", meta.rope, {schema::kRopePost, schema::kRopeNone});
  meta.scale = read_scale(root);
  meta.model = optional_string(root, "model").value_or("");
  meta.source = optional_string(root, "source").value_or("");
  meta.created = optional_string(root, "created").value_or("");
}

// The attribute may be of the layer or of its q.
void check_q_start(const Hdf5Object& at, const LayerMeta& layer) {
  const Index start = layer.n - layer.nq;
  optional_number(at, "q_start", start, start, fmt::format("n - nq = {}", start));
}

void check_values_shape(const Tensor& v, const Tensor& k) {
  v.where.expect(v.heads() == k.heads() && v.rows() == k.rows(),
                 "shape is [{}], expected [{}, {}, dv] as in k", fmt::join(v.sizes, ", "),
                 k.heads(), k.rows());
}

void check_queries_shape(const Tensor& q, const Tensor& k) {
  q.where.expect(q.width() == k.width(), "width is {}, expected {} as in k", q.width(), k.width());
  q.where.expect(q.rows() <= k.rows(), "holds {} queries, expected at most {}, one per token",
                 q.rows(), k.rows());
  q.where.expect(q.heads() % k.heads() == 0,
                 "has {} query heads, expected a multiple of the {} KV heads", q.heads(),
                 k.heads());
}

// q or v of a layer, or null.
const Tensor* add_beside_keys(const Hdf5Object& layer, LayerTensor what, Structure& out,
                              Require require) {
  const Spec spec = rows_spec(what);
  if (has_link(layer, spec.name)) {
    return &out.add(layer, spec);
  }
  (layer.where / spec.name)
      .expect(require == Require::keys,
              "dataset is missing, expected q, k and v in every layer (a trace of keys alone "
              "serves kvbench cluster and info)");
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
    w.where.expect(w.width() % layer.dv == 0 && w.width() / layer.dv == layer.q_heads,
                   "shape is [{}, {}], expected [hidden, {} * {}]: query heads times width of v",
                   w.rows(), w.width(), layer.q_heads, layer.dv);
    layer.hidden = w.rows();
  }
  if (has_link(group, kResidualNorm.name)) {
    const Tensor& norms = out.add(group, kResidualNorm);
    norms.where.expect(norms.width() == layer.nq, "holds {} norms, expected nq = {}", norms.width(),
                       layer.nq);
    layer.has_residual_norm = true;
  }
}

LayerMeta read_layer(const Hdf5Object& layers, const std::string& name, Index n_tokens,
                     Structure& out, Require require) {
  const auto index = parse_layer_name(name);
  (layers.where / name)
      .expect(index.has_value(),
              "layer name is not an index, expected decimal digits without leading zeros");
  const Hdf5Object group = open_group(layers, name);
  check_members(group, {"q", "k", "v", schema::kOProj, schema::kResidualNorm, schema::kExtra,
                        schema::kScores});
  const Tensor& k = out.add(group, rows_spec(LayerTensor::keys));
  const Tensor* q = add_beside_keys(group, LayerTensor::queries, out, require);
  const Tensor* v = add_beside_keys(group, LayerTensor::values, out, require);
  k.where.expect(k.rows() == n_tokens, "holds {} tokens, expected the prompt's n_tokens = {}",
                 k.rows(), n_tokens);
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
  layer.fisher = optional_number(group, "fisher", 0.0, kLargest, "a finite number >= 0");
  read_projection(group, out, layer);
  read_extra(group, out, layer);
  read_scores(group, out, layer);
  layer.retrieval_heads = optional_flags(group, "retrieval_heads", layer.kv_heads);
  layer.window = optional_number<Index>(group, "window", 1, kMost, "at least 1");
  layer.shares_cache_of = optional_number<Index>(group, "shares_cache_of");
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
  where.expect(
      owner != earlier.end() && !owner->shares_cache_of,
      "attribute shares_cache_of is {}, expected an earlier layer of the prompt that has a "
      "cache of its own",
      *layer.shares_cache_of);
  const auto shape = [](const LayerMeta& l) { return std::array{l.kv_heads, l.n, l.d, l.dv}; };
  where.expect(
      shape(*owner) == shape(layer),
      "attribute shares_cache_of is {}, a layer of [kv_heads, n, d, dv] = [{}], expected [{}]",
      owner->layer, fmt::join(shape(*owner), ", "), fmt::join(shape(layer), ", "));
}

PromptMeta read_prompt(const Hdf5Object& prompts, const std::string& id, Structure& out,
                       Require require) {
  const Hdf5Object group = open_group(prompts, id);
  check_members(group, {schema::kTokenIds, schema::kLayers});
  PromptMeta prompt;
  prompt.id = id;
  prompt.n_tokens = required_int(group, "n_tokens", 1, kMost, "at least 1");
  prompt.text_id = optional_string(group, "text_id").value_or("");
  prompt.has_token_ids = has_link(group, schema::kTokenIds);
  const Hdf5Object layers = open_group(group, schema::kLayers);
  check_members(layers);
  const std::vector<std::string> names = link_names(layers);
  layers.where.expect(names.size() <= out.left.layers,
                      "holds {} layers, expected at most {} more in the trace", names.size(),
                      out.left.layers);
  out.left.layers -= names.size();
  for (const std::string& name : names) {
    prompt.layers.push_back(read_layer(layers, name, prompt.n_tokens, out, require));
  }
  layers.where.expect(!prompt.layers.empty(), "holds no layers, expected at least one");
  std::ranges::sort(prompt.layers, {}, &LayerMeta::layer);
  for (std::size_t l = 0; l < prompt.layers.size(); ++l) {
    check_shared_cache(std::span(prompt.layers).first(l), prompt.layers[l],
                       layers.where / std::to_string(prompt.layers[l].layer));
  }
  if (prompt.has_token_ids) {
    const Tensor& ids = out.add(group, kTokenIds);
    ids.where.expect(ids.width() == prompt.n_tokens, "holds {} ids, expected n_tokens = {}",
                     ids.width(), prompt.n_tokens);
  }
  return prompt;
}

struct Tables {
  Place where;
  Index positions = 0;
  Index pairs = 0;
};

Tables read_tables(const Hdf5Object& group, Structure& out) {
  const std::string layout =
      one_of(group, "layout", required_string(group, "layout"), {"half", "interleaved"});
  out.rope_layouts[group.where.path] =
      layout == "half" ? RopeLayout::half : RopeLayout::interleaved;
  const Tensor& cos = out.add(group, kCos);
  const Tensor& sin = out.add(group, kSin);
  sin.where.expect(sin.sizes == cos.sizes, "shape is [{}], expected [{}] as cos has",
                   fmt::join(sin.sizes, ", "), fmt::join(cos.sizes, ", "));
  return {group.where, cos.rows(), cos.width()};
}

void assign_tables(const Tables& tables, LayerMeta& layer) {
  tables.where.expect(2 * tables.pairs <= layer.d,
                      "turns {} channels, expected at most the {} of layer {}", 2 * tables.pairs,
                      layer.d, layer.layer);
  const Index needed = layer.n + schema::kRopeAhead;
  tables.where.expect(tables.positions >= needed,
                      "holds {} positions, expected at least n + {} = {} of layer {}",
                      tables.positions, schema::kRopeAhead, needed, layer.layer);
  layer.rope_positions = tables.positions;
  layer.rope_dim = 2 * tables.pairs;
  layer.rope_path = tables.where.path;
}

void read_rope(const Hdf5Object& root, Structure& out) {
  if (!has_link(root, schema::kRope)) {
    return;
  }
  (root.where / schema::kRope)
      .expect(out.meta.rope == schema::kRopePost,
              "holds rotary tables, expected none where attribute rope is \"{}\"", out.meta.rope);
  const Hdf5Object group = open_group(root, schema::kRope);
  check_members(group);
  std::optional<Tables> shared;
  std::map<Index, Tables> own;
  if (has_link(group, kCos.name)) {
    shared = read_tables(group, out);
  } else {
    for (const std::string& name : link_names(group)) {
      const auto layer = parse_layer_name(name);
      (group.where / name)
          .expect(layer.has_value(),
                  "is no layer's index, expected cos and sin, or a group for each layer");
      own[*layer] = read_tables(open_group(group, name), out);
    }
    group.where.expect(!own.empty(), "is empty, expected cos and sin, or a group for each layer");
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
  prompts.where.expect(!meta.prompts.empty(), "holds no prompts, expected at least one");
  read_rope(root, out);
  check_disjoint(root);
  return out;
}

std::string layer_path(const PromptMeta& prompt, const LayerMeta& layer) {
  return fmt::format("/{}/{}/{}/{}", schema::kPrompts, prompt.id, schema::kLayers, layer.layer);
}

}  // namespace kvbench::h5
