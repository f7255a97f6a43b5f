#include "trace/projection.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <string>

#include "core/float16.hpp"
#include "trace/chunk_write.hpp"
#include "trace/dataset.hpp"
#include "trace/structure.hpp"

namespace kvbench::h5 {
namespace {

// An open dataset of a layer and how its elements are stored.
struct Open {
  Handle id;
  Place where;
  ElementType type;
};

Open open_o_proj(hid_t group, const Place& layer, DType dtype) {
  Open out;
  out.where = layer / schema::kOProj;
  out.id = open_dataset(group, schema::kOProj, out.where);
  out.type = check_type(out.id.get(), dtype, /*or_float32=*/true, out.where);
  return out;
}

Open open_residual_norm(hid_t group, const Place& layer) {
  Open out;
  out.where = layer / schema::kResidualNorm;
  out.id = open_dataset(group, schema::kResidualNorm, out.where);
  out.type = check_type(out.id.get(), DType::float32, false, out.where);
  return out;
}

// Rows of the projection of a layer whose q and v are known.
Index o_proj_rows(const Open& open, const LayerMeta& layer) {
  const auto sizes = check_shape(open.id.get(), 2, "hidden, q_heads * dv",
                                 bytes_per_element(open.type.dtype), open.where);
  // A quotient, for the product could overflow where the shapes of q and v are not yet plausible.
  if (sizes[1] % layer.dv != 0 || sizes[1] / layer.dv != layer.q_heads) {
    open.where.refuse(
        fmt::format("shape is [{}, {}], expected [hidden, {} * {}]: query heads times width of v",
                    sizes[0], sizes[1], layer.q_heads, layer.dv));
  }
  return sizes[0];
}

void check_norm_count(const Open& open, const LayerMeta& layer) {
  const auto sizes = check_shape(open.id.get(), 1, "nq", 4, open.where);
  if (sizes[0] != layer.nq) {
    open.where.refuse(fmt::format("holds {} norms, expected nq = {}", sizes[0], layer.nq));
  }
}

Handle open_layer(hid_t file, const Place& where) {
  Handle group(H5Oopen(file, where.path.c_str(), H5P_DEFAULT), H5Oclose);
  if (!group) {
    where.refuse(fmt::format("group cannot be opened ({})", last_error()));
  }
  return group;
}

// The columns [first, first + out.cols()) of all rows.
void read_columns(const Open& open, Index first, Matrix& out) {
  const std::array<hsize_t, 2> start{0, static_cast<hsize_t>(first)};
  const std::array<hsize_t, 2> count{static_cast<hsize_t>(out.rows()),
                                     static_cast<hsize_t>(out.cols())};
  const Handle space(H5Dget_space(open.id.get()), H5Sclose);
  const Handle memory(H5Screate_simple(2, count.data(), nullptr), H5Sclose);
  // The stored type but for the order of bytes: HDF5's own conversion of halves is slow.
  const Handle stored(H5Dget_type(open.id.get()), H5Tclose);
  const Handle type(stored ? H5Tcopy(stored.get()) : -1, H5Tclose);
  const Index elements = out.rows() * out.cols();
  const bool wide = open.type.dtype == DType::float32;
  std::vector<std::uint16_t> plane(wide ? 0 : static_cast<std::size_t>(elements));
  void* to = wide ? static_cast<void*>(out.data()) : plane.data();
  if (!type || H5Tset_order(type.get(), H5T_ORDER_LE) < 0 ||
      H5Sselect_hyperslab(space.get(), H5S_SELECT_SET, start.data(), nullptr, count.data(),
                          nullptr) < 0 ||
      H5Dread(open.id.get(), type.get(), memory.get(), space.get(), H5P_DEFAULT, to) < 0) {
    open.where.refuse(fmt::format("columns {} to {} cannot be read ({})", first,
                                  first + out.cols() - 1, last_error()));
  }
  if (open.type.dtype == DType::float16) {
    half_to_float(plane.data(), out.data(), elements);
  } else if (!wide) {
    bfloat16_to_float(plane.data(), out.data(), elements);
  }
}

}  // namespace

void read_projection_structure(hid_t group, const Place& where, DType dtype, LayerMeta& layer) {
  if (!layer.has(Rows::queries)) {
    return;
  }
  if (layer.has(Rows::values) && has_link(group, schema::kOProj)) {
    layer.hidden = o_proj_rows(open_o_proj(group, where, dtype), layer);
  }
  if (has_link(group, schema::kResidualNorm)) {
    check_norm_count(open_residual_norm(group, where), layer);
    layer.has_residual_norm = true;
  }
}

Matrix read_o_proj(hid_t file, const TraceMeta& meta, const PromptMeta& prompt,
                   const LayerMeta& layer, Index kv_head) {
  const Place where{meta.path, layer_path(prompt, layer)};
  const Handle group = open_layer(file, where);
  const Open open = open_o_proj(group.get(), where, meta.dtype);
  if (o_proj_rows(open, layer) != layer.hidden) {
    open.where.refuse("shape changed since the file was opened");
  }
  const Index width = layer.group() * layer.dv;
  const Index first = kv_head * width;
  Matrix out(layer.hidden, width);
  read_columns(open, first, out);
  const Index count = out.rows() * out.cols();
  const Index bad = first_non_finite(out.data(), count);
  if (bad != count) {
    open.where.refuse(fmt::format("row {}, column {} is {}, expected finite values", bad / width,
                                  first + bad % width, out.data()[bad]));
  }
  return out;
}

std::vector<float> read_residual_norm(hid_t file, const TraceMeta& meta, const PromptMeta& prompt,
                                      const LayerMeta& layer) {
  const Place where{meta.path, layer_path(prompt, layer)};
  const Handle group = open_layer(file, where);
  const Open open = open_residual_norm(group.get(), where);
  check_norm_count(open, layer);
  std::vector<float> out(static_cast<std::size_t>(layer.nq));
  if (H5Dread(open.id.get(), H5T_NATIVE_FLOAT, H5S_ALL, H5S_ALL, H5P_DEFAULT, out.data()) < 0) {
    open.where.refuse(fmt::format("values cannot be read ({})", last_error()));
  }
  const auto bad = std::find_if(out.begin(), out.end(),
                                [](float x) { return !(std::isfinite(x) && x >= 0.0F); });
  if (bad != out.end()) {
    open.where.refuse(fmt::format("token {} is {}, expected finite numbers >= 0",
                                  layer.n - layer.nq + (bad - out.begin()), *bad));
  }
  return out;
}

bool write_o_proj(hid_t group, MatrixView w, Index dv, DType dtype, int gzip_level) {
  const Index chunk_rows = std::min(w.rows, schema::kMaxChunkTokens);
  const std::array<hsize_t, 2> sizes{static_cast<hsize_t>(w.rows), static_cast<hsize_t>(w.cols)};
  const std::array<hsize_t, 2> chunk{static_cast<hsize_t>(chunk_rows), static_cast<hsize_t>(dv)};
  const Handle space(H5Screate_simple(2, sizes.data(), nullptr), H5Sclose);
  const Handle plist(H5Pcreate(H5P_DATASET_CREATE), H5Pclose);
  H5Pset_chunk(plist.get(), 2, chunk.data());
  H5Pset_obj_track_times(plist.get(), false);  // the same values give the same bytes
  H5Pset_fill_time(plist.get(), H5D_FILL_TIME_NEVER);
  if (gzip_level > 0) {
    H5Pset_shuffle(plist.get());
    H5Pset_deflate(plist.get(), static_cast<unsigned>(gzip_level));
  }
  const Handle type = file_type(dtype);
  const Handle data(H5Dcreate2(group, std::string(schema::kOProj).c_str(), type.get(), space.get(),
                               H5P_DEFAULT, plist.get(), H5P_DEFAULT),
                    H5Dclose);
  if (!data) {
    return false;
  }
  Matrix head(w.rows, dv);
  for (Index first = 0; first < w.cols; first += dv) {
    for (Index r = 0; r < w.rows; ++r) {
      std::copy_n(w.data + r * w.cols + first, dv, head.row(r));
    }
    const auto chunks = encode_head(head, chunk_rows, dtype, gzip_level);
    for (std::size_t i = 0; i < chunks.size(); ++i) {
      const std::array<hsize_t, 2> offset{i * static_cast<hsize_t>(chunk_rows),
                                          static_cast<hsize_t>(first)};
      if (H5Dwrite_chunk(data.get(), H5P_DEFAULT, 0, offset.data(), chunks[i].size(),
                         chunks[i].data()) < 0) {
        return false;
      }
    }
  }
  return true;
}

bool write_floats(hid_t group, std::string_view name, const std::vector<hsize_t>& sizes,
                  const float* values) {
  const Handle space(H5Screate_simple(static_cast<int>(sizes.size()), sizes.data(), nullptr),
                     H5Sclose);
  const Handle plist(H5Pcreate(H5P_DATASET_CREATE), H5Pclose);
  H5Pset_obj_track_times(plist.get(), false);
  const Handle data(H5Dcreate2(group, std::string(name).c_str(), H5T_IEEE_F32LE, space.get(),
                               H5P_DEFAULT, plist.get(), H5P_DEFAULT),
                    H5Dclose);
  return data && H5Dwrite(data.get(), H5T_NATIVE_FLOAT, H5S_ALL, H5S_ALL, H5P_DEFAULT, values) >= 0;
}

}  // namespace kvbench::h5
