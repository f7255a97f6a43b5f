#include "trace/rope_tables.hpp"

#include <fmt/format.h>

#include <array>
#include <map>

#include "core/float16.hpp"
#include "trace/dataset.hpp"

namespace kvbench::h5 {
namespace {

constexpr std::array<const char*, 2> kNames{"cos", "sin"};

RopeLayout read_layout(hid_t group, const Place& where) {
  const std::string layout = required_string(group, "layout", where);
  if (layout != "half" && layout != "interleaved") {
    where.refuse(fmt::format("attribute layout is \"{}\", expected \"half\" or \"interleaved\"",
                             one_line(layout)));
  }
  return layout == "half" ? RopeLayout::half : RopeLayout::interleaved;
}

struct Shape {
  Index positions = 0;
  Index pairs = 0;

  friend bool operator==(const Shape&, const Shape&) = default;
};

Shape shape_of(hid_t dataset, const Place& where) {
  check_type(dataset, DType::float32, false, where);
  const auto sizes = check_shape(dataset, 2, "positions, rope_dim / 2", 4, where);
  return {sizes[0], sizes[1]};
}

Shape read_shape(hid_t group, const Place& where) {
  read_layout(group, where);
  std::array<Shape, 2> shapes;
  for (std::size_t i = 0; i < kNames.size(); ++i) {
    const Place place = where / kNames[i];
    const Handle dataset = open_dataset(group, kNames[i], place);
    shapes[i] = shape_of(dataset.get(), place);
  }
  if (shapes[0] != shapes[1]) {
    (where / kNames[1])
        .refuse(fmt::format("shape is [{}, {}], expected [{}, {}] as cos has", shapes[1].positions,
                            shapes[1].pairs, shapes[0].positions, shapes[0].pairs));
  }
  return shapes[0];
}

void give(LayerMeta& layer, const Shape& shape, const Place& where) {
  if (2 * shape.pairs > layer.d) {
    where.refuse(fmt::format("turns {} channels, expected at most the {} of layer {}",
                             2 * shape.pairs, layer.d, layer.layer));
  }
  const Index needed = layer.n + schema::kRopeAhead;
  if (shape.positions < needed) {
    where.refuse(fmt::format("holds {} positions, expected at least n + {} = {} of layer {}",
                             shape.positions, schema::kRopeAhead, needed, layer.layer));
  }
  layer.rope_positions = shape.positions;
  layer.rope_dim = 2 * shape.pairs;
  layer.rope_path = where.path;
}

}  // namespace

void read_rope_structure(hid_t file, const Place& root, TraceMeta& meta) {
  if (!has_link(file, schema::kRope)) {
    return;
  }
  const Place where = root / schema::kRope;
  if (meta.rope != schema::kRopePost) {
    where.refuse(fmt::format("holds rotary tables, expected none where attribute rope is \"{}\"",
                             meta.rope));
  }
  const Handle group = open_group(file, schema::kRope, where);
  if (has_link(group.get(), "cos")) {
    const Shape shape = read_shape(group.get(), where);
    for (PromptMeta& prompt : meta.prompts) {
      for (LayerMeta& layer : prompt.layers) {
        give(layer, shape, where);
      }
    }
    return;
  }
  std::map<Index, std::pair<Shape, Place>> by_layer;
  for (const std::string& name : link_names(group.get(), where)) {
    const Place below = where / name;
    const auto layer = parse_layer_name(name);
    if (!layer) {
      below.refuse("is no layer's index, expected cos and sin, or a group for each layer");
    }
    const Handle own = open_group(group.get(), name, below);
    by_layer.emplace(*layer, std::pair{read_shape(own.get(), below), below});
  }
  if (by_layer.empty()) {
    where.refuse("is empty, expected cos and sin, or a group for each layer");
  }
  // A layer without tables does not rotate.
  for (PromptMeta& prompt : meta.prompts) {
    for (LayerMeta& layer : prompt.layers) {
      const auto found = by_layer.find(layer.layer);
      if (found != by_layer.end()) {
        give(layer, found->second.first, found->second.second);
      }
    }
  }
}

RopeTables read_rope_tables(hid_t file, const TraceMeta& meta, const LayerMeta& layer) {
  const Place where{meta.path, layer.rope_path};
  const Handle group(H5Oopen(file, where.path.c_str(), H5P_DEFAULT), H5Oclose);
  if (!group) {
    where.refuse(fmt::format("group cannot be opened ({})", last_error()));
  }
  RopeTables out;
  out.layout = read_layout(group.get(), where);
  const std::array<Matrix*, 2> to{&out.cos, &out.sin};
  for (std::size_t i = 0; i < kNames.size(); ++i) {
    const Place place = where / kNames[i];
    const Handle dataset = open_dataset(group.get(), kNames[i], place);
    const Shape shape = shape_of(dataset.get(), place);
    if (shape.positions != layer.rope_positions || 2 * shape.pairs != layer.rope_dim) {
      place.refuse("shape changed since the file was opened");
    }
    *to[i] = Matrix(shape.positions, shape.pairs);
    if (H5Dread(dataset.get(), H5T_NATIVE_FLOAT, H5S_ALL, H5S_ALL, H5P_DEFAULT, to[i]->data()) <
        0) {
      place.refuse(fmt::format("values cannot be read ({})", last_error()));
    }
    const Index count = shape.positions * shape.pairs;
    const Index bad = first_non_finite(to[i]->data(), count);
    if (bad != count) {
      place.refuse(fmt::format("position {}, pair {} is {}, expected finite values",
                               bad / shape.pairs, bad % shape.pairs, to[i]->data()[bad]));
    }
  }
  for (Index i = 0; i < out.cos.rows() * out.cos.cols(); ++i) {
    if (out.cos.data()[i] == 0.0F && out.sin.data()[i] == 0.0F) {
      where.refuse(fmt::format("position {}, pair {}: cos and sin are both 0, expected a rotation",
                               i / out.cos.cols(), i % out.cos.cols()));
    }
  }
  return out;
}

}  // namespace kvbench::h5
