// What a trace may hold beside queries, keys and values.
#include <fmt/format.h>

#include <cmath>
#include <new>
#include <utility>

#include "trace/projection.hpp"
#include "trace/schema.hpp"
#include "trace/writer_impl.hpp"

namespace kvbench {

using h5::Handle;

void TraceWriter::Impl::expect_new(std::string_view name) const {
  if (!layer || h5::has_link(layer_group.get(), name)) {
    misuse(fmt::format("{} written before begin_layer or twice", name));
  }
}

void TraceWriter::write_o_proj(MatrixView w) {
  const h5::Silence silence;
  Impl& i = *impl_;
  i.expect_new(schema::kOProj);
  const Index width = i.layer->q_heads * i.layer->dv;
  if (w.rows < 1 || w.cols != width) {
    i.misuse(
        fmt::format("o_proj has shape [{}, {}], expected [hidden, {}]", w.rows, w.cols, width));
  }
  i.check_finite("o_proj", w);
  try {
    if (!h5::write_o_proj(i.layer_group.get(), w, i.layer->dv, i.header.dtype,
                          i.header.gzip_level)) {
      i.fail("o_proj");
    }
  } catch (const std::bad_alloc&) {
    throw IoError(h5::one_line(fmt::format("{}: not enough memory for o_proj", i.partial)));
  }
}

void TraceWriter::write_residual_norm(std::span<const float> norms) {
  const h5::Silence silence;
  Impl& w = *impl_;
  w.expect_new(schema::kResidualNorm);
  if (static_cast<Index>(norms.size()) != w.layer->nq) {
    w.misuse(fmt::format("{} residual norms, expected nq = {}", norms.size(), w.layer->nq));
  }
  for (const float x : norms) {
    if (!(std::isfinite(x) && x >= 0)) {
      w.misuse(fmt::format("residual norm is {}, expected finite numbers >= 0", x));
    }
  }
  if (!h5::write_floats(w.layer_group.get(), schema::kResidualNorm, {norms.size()}, norms.data())) {
    w.fail("residual_norm");
  }
}

void TraceWriter::write_rope(const RopeTables& tables, std::optional<Index> layer) {
  const h5::Silence silence;
  Impl& w = *impl_;
  const std::string root(schema::kRope);
  if (tables.cos.rows() < 1 || tables.cos.cols() < 1 || tables.cos.rows() != tables.sin.rows() ||
      tables.cos.cols() != tables.sin.cols()) {
    w.misuse("rotary tables are empty or differ in shape");
  }
  const bool there = h5::has_link(w.file.get(), root);
  if (there && !layer) {
    w.misuse("rotary tables are written twice");
  }
  Handle group = there ? Handle(H5Gopen2(w.file.get(), root.c_str(), H5P_DEFAULT), H5Gclose)
                       : w.group(w.file.get(), root);
  if (layer) {
    const std::string name = std::to_string(*layer);
    if (!parse_layer_name(name) || h5::has_link(group.get(), name) ||
        h5::has_link(group.get(), "cos")) {
      w.misuse(fmt::format("rotary tables of layer {} are out of range or written twice", name));
    }
    group = w.group(group.get(), name);
  }
  w.string_attribute(group.get(), "layout",
                     tables.layout == RopeLayout::half ? "half" : "interleaved");
  for (const auto& [name, table] : {std::pair{"cos", &tables.cos}, {"sin", &tables.sin}}) {
    if (!h5::write_floats(
            group.get(), name,
            {static_cast<hsize_t>(table->rows()), static_cast<hsize_t>(table->cols())},
            table->data())) {
      w.fail(fmt::format("rope/{}", name));
    }
  }
}

}  // namespace kvbench
