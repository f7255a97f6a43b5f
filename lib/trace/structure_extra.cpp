#include <algorithm>
#include <utility>

#include "trace/structure.hpp"

namespace kvbench::h5 {

namespace {

void take_parts(const Place& where, std::size_t count, Structure& out) {
  where.expect(count <= out.left.parts,
               "holds {} segments or scores, expected at most {} more in the trace", count,
               out.left.parts);
  out.left.parts -= count;
}

void check_set_name(const Hdf5Object& parent, const std::string& name) {
  (parent.where / name)
      .expect(is_set_name(name),
              "is no name of a set, expected letters, digits, '-', '_' and '.', at most 100");
}

std::optional<Index> read_prefix(const Hdf5Object& at, Index n) {
  return optional_number<Index>(at, "prefix", 0, n, fmt::format("0 to n = {}", n));
}

std::optional<Range> read_about(const Hdf5Object& at, Index end, const char* end_name) {
  const auto first = optional_number<Index>(at, "first");
  const auto last = optional_number<Index>(at, "last");
  at.where.expect(first.has_value() == last.has_value(),
                  "attribute {} is missing, expected first and last or neither",
                  first ? "last" : "first");
  if (!first || !last) {
    return std::nullopt;
  }
  at.where.expect(0 <= *first && *first <= *last && *last <= end,
                  "attributes first and last are {} and {}, expected 0 <= first <= last <= {} = {}",
                  *first, *last, end_name, end);
  return Range{*first, *last};
}

ExtraSegmentInfo read_segment(const Hdf5Object& at, Structure& structure, const LayerMeta& layer) {
  check_members(at);
  const Tensor& q = structure.add(at, kExtraQ);
  q.where.expect(q.heads() == layer.q_heads && q.width() == layer.d,
                 "shape is [{}], expected [{}, m, {}]: query heads and width of the layer",
                 fmt::join(q.sizes, ", "), layer.q_heads, layer.d);
  const Tensor& k = structure.add(at, kExtraK);
  k.where.expect(k.sizes == std::vector{layer.kv_heads, q.rows(), layer.d},
                 "shape is [{}], expected [{}, {}, {}]: KV heads of the layer, m of q, width",
                 fmt::join(k.sizes, ", "), layer.kv_heads, q.rows(), layer.d);
  const Tensor& position = structure.add(at, kPosition);
  position.where.expect(position.width() == q.rows(), "holds {} positions, expected m = {}",
                        position.width(), q.rows());
  ExtraSegmentInfo out;
  out.queries = q.rows();
  if (has_link(at, kExtraNorm.name)) {
    const Tensor& norms = structure.add(at, kExtraNorm);
    norms.where.expect(norms.width() == out.queries, "holds {} norms, expected m = {} as q has",
                       norms.width(), out.queries);
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
    set.where.expect(!segments.empty(), "holds no segments, expected at least one");
    take_parts(set.where, segments.size(), out);
    for (const std::string& segment : segments) {
      (set.where / segment)
          .expect(segment == std::to_string(info.segments.size()),
                  "is not the name of segment {}, expected segments 0, 1, ... of the set",
                  info.segments.size());
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
    scores.where.expect(scores.rows() == layer.kv_heads && scores.width() == layer.n,
                        "shape is [{}], expected [{}, {}]: KV heads and tokens of the layer",
                        fmt::join(scores.sizes, ", "), layer.kv_heads, layer.n);
    layer.scores.push_back({name, read_prefix(open_dataset(all, name), layer.n)});
  }
}

}  // namespace kvbench::h5
