#include "trace/structure_extra.hpp"

#include <algorithm>
#include <utility>

namespace kvbench::h5 {

namespace {

void take_parts(const Place& where, std::size_t count, Structure& out) {
  if (count > out.left.parts) {
    where.refuse("holds {} segments or scores, expected at most {} more in the trace", count,
                 out.left.parts);
  }
  out.left.parts -= count;
}

void check_set_name(const Hdf5Object& parent, const std::string& name) {
  if (!is_set_name(name)) {
    (parent.where / name)
        .refuse("is no name of a set, expected letters, digits, '-', '_' and '.', at most 100");
  }
}

std::optional<Index> read_prefix(const Hdf5Object& at, Index n) {
  const auto prefix = optional_int(at, "prefix");
  if (prefix && !(0 <= *prefix && *prefix <= n)) {
    at.where.refuse("attribute prefix is {}, expected 0 to n = {}", *prefix, n);
  }
  return prefix;
}

std::optional<Range> read_about(const Hdf5Object& at, Index end, const char* end_name) {
  const auto first = optional_int(at, "first");
  const auto last = optional_int(at, "last");
  if (first.has_value() != last.has_value()) {
    at.where.refuse("attribute {} is missing, expected first and last or neither",
                    first ? "last" : "first");
  }
  if (!first) {
    return std::nullopt;
  }
  if (!(0 <= *first && *first <= *last && *last <= end)) {
    at.where.refuse(
        "attributes first and last are {} and {}, expected 0 <= first <= last <= {} = "
        "{}",
        *first, *last, end_name, end);
  }
  return Range{*first, *last};
}

ExtraSegmentInfo read_segment(const Hdf5Object& at, Structure& structure, const LayerMeta& layer) {
  check_members(at);
  const Tensor& q = structure.add(at, kExtraQ);
  if (q.heads() != layer.q_heads || q.width() != layer.d) {
    q.where.refuse("shape is [{}], expected [{}, m, {}]: query heads and width of the layer",
                   fmt::join(q.sizes, ", "), layer.q_heads, layer.d);
  }
  const Tensor& k = structure.add(at, kExtraK);
  if (k.heads() != layer.kv_heads || k.rows() != q.rows() || k.width() != layer.d) {
    k.where.refuse("shape is [{}], expected [{}, {}, {}]: KV heads of the layer, m of q, width",
                   fmt::join(k.sizes, ", "), layer.kv_heads, q.rows(), layer.d);
  }
  structure.add(open_integers(at, kPosition, q.rows(), "positions", "m"));
  ExtraSegmentInfo out;
  out.queries = q.rows();
  if (has_link(at, kExtraNorm.name)) {
    const Tensor& norms = structure.add(at, kExtraNorm);
    if (norms.width() != out.queries) {
      norms.where.refuse("holds {} norms, expected m = {} as q has", norms.width(), out.queries);
    }
    out.has_residual_norm = true;
  }
  out.prefix = read_prefix(at, layer.n);
  out.about = read_about(at, out.prefix.value_or(layer.n), out.prefix ? "prefix" : "n");
  return out;
}

}  // namespace

void read_extra(const Hdf5Object& group, Structure& out, LayerMeta& layer) {
  if (!layer.has(LayerTensor::queries) || !has_link(group, schema::kExtra)) {
    return;
  }
  const Hdf5Object sets = open_group(group, schema::kExtra);
  check_members(sets);
  for (const std::string& name : link_names(sets)) {
    check_set_name(sets, name);
    const Hdf5Object set = open_group(sets, name);
    check_members(set);
    ExtraSetInfo& info = layer.extra.emplace_back(ExtraSetInfo{name, {}});
    const std::vector<std::string> segments = link_names(set);
    if (segments.empty()) {
      set.where.refuse("holds no segments, expected at least one");
    }
    take_parts(set.where, segments.size(), out);
    for (const std::string& segment : segments) {
      if (segment != std::to_string(info.segments.size())) {
        (set.where / segment)
            .refuse("is not the name of segment {}, expected segments 0, 1, ... of the set",
                    info.segments.size());
      }
      info.segments.push_back(read_segment(open_group(set, segment), out, layer));
    }
  }
}

void read_scores(const Hdf5Object& group, Structure& out, LayerMeta& layer) {
  if (!has_link(group, schema::kScores)) {
    return;
  }
  const Hdf5Object all = open_group(group, schema::kScores);
  check_members(all);
  const std::vector<std::string> names = link_names(all);
  take_parts(all.where, names.size(), out);
  for (const std::string& name : names) {
    check_set_name(all, name);
    const Tensor& scores = out.add(all, scores_spec(name));
    if (scores.rows() != layer.kv_heads || scores.width() != layer.n) {
      scores.where.refuse("shape is [{}], expected [{}, {}]: KV heads and tokens of the layer",
                          fmt::join(scores.sizes, ", "), layer.kv_heads, layer.n);
    }
    layer.scores.push_back({name, read_prefix(open_dataset(all, name), layer.n)});
  }
}

}  // namespace kvbench::h5
