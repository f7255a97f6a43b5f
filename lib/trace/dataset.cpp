#include "trace/dataset.hpp"

#include <cstddef>
#include <filesystem>
#include <optional>
#include <system_error>

namespace kvbench::h5 {

namespace {

// Deflate cannot shrink by more than 1032; above this ratio the sizes in the file are not real.
constexpr std::uint64_t kMaxRatio = 2000;

// Sizes stay far below what an Index can address even after widening to float32.
constexpr std::uint64_t kMaxBytes = std::uint64_t{1} << 60;

// The stored type as the schema's, if it is one, in either byte order: uint16 can only mean
// bfloat16.
std::optional<DType> stored_dtype(hid_t type) {
  const H5T_order_t order = H5Tget_order(type);
  const Handle little(H5Tcopy(type), H5Tclose);
  if (order == H5T_ORDER_BE) {
    H5Tset_order(little, H5T_ORDER_LE);
  }
  for (const DType t : {DType::float16, DType::bfloat16, DType::float32}) {
    if (H5Tequal(little, file_type(t)) > 0) {
      return t;
    }
  }
  return std::nullopt;
}

std::string_view stored_as(DType t) {
  switch (t) {
    case DType::float16: return "16-bit IEEE float";
    case DType::bfloat16: return "uint16";
    case DType::float32: return "32-bit IEEE float";
  }
  return "?";
}

std::string describe_type(hid_t type) {
  if (const auto known = stored_dtype(type)) {
    return std::string(stored_as(*known));
  }
  const std::size_t bits = 8 * H5Tget_size(type);
  switch (H5Tget_class(type)) {
    case H5T_FLOAT: return fmt::format("another {}-bit float", bits);
    case H5T_INTEGER:
      return fmt::format("{}int{}", H5Tget_sign(type) == H5T_SGN_NONE ? "u" : "", bits);
    case H5T_STRING: return "string";
    case H5T_COMPOUND: return "compound";
    case H5T_ENUM: return "enumeration";
    default: return "another type";
  }
}

// A C string: HDF5 fills a buffer that is longer than the name.
std::uint64_t size_on_disk(const char* path) {
  std::error_code failed;
  const auto size = std::filesystem::file_size(path, failed);
  return failed ? 0 : static_cast<std::uint64_t>(size);
}

// Bytes in other files that an external or virtual dataset names.
std::uint64_t bytes_elsewhere(hid_t plist, H5D_layout_t layout) {
  constexpr std::size_t kMaxName = 4096;
  std::uint64_t total = 0;
  std::string file(kMaxName, '\0');
  if (layout == H5D_VIRTUAL) {
    std::size_t count = 0;
    H5Pget_virtual_count(plist, &count);
    for (std::size_t i = 0; i < count; ++i) {
      if (H5Pget_virtual_filename(plist, i, file.data(), kMaxName) > 0) {
        total += size_on_disk(file.c_str());
      }
    }
    return total;
  }
  const int count = H5Pget_external_count(plist);
  for (int i = 0; i < count; ++i) {
    if (H5Pget_external(plist, static_cast<unsigned>(i), kMaxName, file.data(), nullptr, nullptr) >=
        0) {
      file.back() = '\0';
      total += size_on_disk(file.c_str());
    }
  }
  return total;
}

// Bytes on disk of the file that `object` is in.
std::uint64_t file_size_of(hid_t object) {
  const Handle file(H5Iget_file_id(object), H5Fclose);
  hsize_t size = 0;
  return file && H5Fget_filesize(file, &size) >= 0 ? size : 0;
}

void check_filters(hid_t plist, const Place& where) {
  const int count = H5Pget_nfilters(plist);
  for (int i = 0; i < count; ++i) {
    unsigned flags = 0;
    std::size_t values = 0;
    unsigned config = 0;
    std::array<char, 128> label{};
    const H5Z_filter_t filter = H5Pget_filter2(plist, static_cast<unsigned>(i), &flags, &values,
                                               nullptr, label.size() - 1, label.data(), nullptr);
    if (filter < 0) {
      where.refuse("filter {} cannot be read ({})", i, last_error());
    }
    if (H5Zfilter_avail(filter) <= 0 || H5Zget_filter_info(filter, &config) < 0 ||
        (config & H5Z_FILTER_CONFIG_DECODE_ENABLED) == 0) {
      where.refuse(
          "filter {} ({}) is not available, expected none, shuffle, gzip or another one that this "
          "HDF5 can decode",
          filter, label[0] == '\0' ? "unnamed" : label.data());
    }
  }
}

// Recognises the pipelines that chunk_read.cpp decodes: shuffle, deflate, or shuffle then deflate.
bool known_pipeline(hid_t plist, Index element_bytes, ChunkLayout& chunk) {
  const int count = H5Pget_nfilters(plist);
  for (int i = 0; i < count; ++i) {
    unsigned flags = 0;
    std::array<unsigned, 8> values{};
    std::size_t n_values = values.size();
    unsigned config = 0;
    const H5Z_filter_t filter = H5Pget_filter2(plist, static_cast<unsigned>(i), &flags, &n_values,
                                               values.data(), 0, nullptr, &config);
    const std::uint32_t bit = std::uint32_t{1} << i;
    if (filter == H5Z_FILTER_SHUFFLE && i == 0 && n_values >= 1 &&
        values[0] == static_cast<unsigned>(element_bytes)) {
      chunk.shuffle_bit = bit;
    } else if (filter == H5Z_FILTER_DEFLATE && i == count - 1) {
      chunk.deflate_bit = bit;
    } else {
      return false;
    }
  }
  // Without filters HDF5 reads straight into our buffer, and only the rows that are asked for.
  return count > 0;
}

void find_raw_layout(Tensor& t, hid_t type, hid_t plist) {
  unsigned options = 0;
  // Unfiltered edge chunks carry no mark in their filter mask; HDF5 knows how to tell.
  if (H5Tget_order(type) == H5T_ORDER_BE || H5Pget_layout(plist) != H5D_CHUNKED ||
      H5Pget_chunk(plist, 3, t.chunk.dims.data()) != 3 || H5Pget_chunk_opts(plist, &options) < 0 ||
      (options & H5D_CHUNK_DONT_FILTER_PARTIAL_CHUNKS) != 0) {
    return;
  }
  std::uint64_t elements = 1;
  for (const hsize_t size : t.chunk.dims) {
    if (size == 0 || __builtin_mul_overflow(elements, size, &elements)) {
      return;
    }
  }
  H5D_fill_value_t defined = H5D_FILL_VALUE_UNDEFINED;
  t.chunk.elements = static_cast<Index>(elements);
  t.raw_chunks =
      elements <= UINT32_MAX && known_pipeline(plist, bytes_per_element(t.dtype), t.chunk) &&
      H5Pfill_value_defined(plist, &defined) >= 0 &&
      (defined == H5D_FILL_VALUE_UNDEFINED || H5Pget_fill_value(plist, type, &t.chunk.fill) >= 0);
}

// Sizes whose rank and product are plausible.
std::vector<Index> checked_sizes(const Object& dataset, const Spec& spec, Index element_bytes) {
  const std::vector<hsize_t> s = sizes_of(dataset);
  if (s.size() != spec.rank) {
    dataset.where.refuse("rank is {}, expected {}: [{}]", s.size(), spec.rank, spec.axes);
  }
  auto bytes = static_cast<std::uint64_t>(element_bytes);
  for (const hsize_t size : s) {
    if (size == 0) {
      dataset.where.refuse("shape is [{}], expected sizes of at least 1", fmt::join(s, ", "));
    }
    if (__builtin_mul_overflow(bytes, size, &bytes) || bytes > kMaxBytes) {
      dataset.where.refuse("shape is [{}], expected a product that fits memory",
                           fmt::join(s, ", "));
    }
  }
  check_storage(dataset, bytes);
  return {s.begin(), s.end()};
}

}  // namespace

Handle file_type(DType type) {
  switch (type) {
    case DType::bfloat16: return {H5Tcopy(H5T_STD_U16LE), H5Tclose};
    case DType::float32: return {H5Tcopy(H5T_IEEE_F32LE), H5Tclose};
    case DType::float16: break;
  }
  // HDF5 1.10 has no name for half; this is the type that h5py gives numpy's float16.
  Handle half(H5Tcopy(H5T_IEEE_F32LE), H5Tclose);
  H5Tset_fields(half, 15, 10, 5, 0, 10);
  H5Tset_size(half, 2);
  H5Tset_ebias(half, 15);
  return half;
}

void check_storage(const Object& dataset, std::uint64_t bytes) {
  const Place& where = dataset.where;
  const std::uint64_t file_bytes = file_size_of(dataset);
  const Handle plist(H5Dget_create_plist(dataset), H5Pclose);
  const H5D_layout_t layout = plist ? H5Pget_layout(plist) : H5D_LAYOUT_ERROR;
  if (layout == H5D_LAYOUT_ERROR) {
    where.refuse("storage layout cannot be read ({})", last_error());
  }
  const std::uint64_t elsewhere = bytes_elsewhere(plist, layout);
  const bool external = layout == H5D_CONTIGUOUS && H5Pget_external_count(plist) > 0;
  if (external) {
    if (bytes > elsewhere) {
      where.refuse("needs {} bytes, expected at most the {} of its external files", bytes,
                   elsewhere);
    }
  } else if (layout == H5D_CONTIGUOUS || layout == H5D_COMPACT) {
    const std::uint64_t stored = H5Dget_storage_size(dataset);
    const haddr_t offset = layout == H5D_COMPACT ? 0 : H5Dget_offset(dataset);
    if (stored < bytes || offset == HADDR_UNDEF) {
      where.refuse("holds {} bytes, expected {} for its shape", stored, bytes);
    }
    if (layout == H5D_CONTIGUOUS && (bytes > file_bytes || offset > file_bytes - bytes)) {
      where.refuse("needs {} bytes at {}, expected to lie within the file's {} bytes", bytes,
                   offset, file_bytes);
    }
  } else if (bytes / kMaxRatio > file_bytes + elsewhere) {
    where.refuse("needs {} bytes, expected at most {} times the file's {} bytes", bytes, kMaxRatio,
                 file_bytes + elsewhere);
  }
  check_filters(plist, where);
}

Tensor open_tensor(const Object& group, const Spec& spec, DType dtype) {
  Tensor t{open_dataset(group, spec.name)};
  const Handle type(H5Dget_type(t), H5Tclose);
  if (!type) {
    t.where.refuse("element type cannot be read ({})", last_error());
  }
  const DType expected = spec.type == Spec::always_float32 ? DType::float32 : dtype;
  const bool or_float32 = spec.type == Spec::as_trace_or_float32;
  const auto found = stored_dtype(type);
  if (!found || !(*found == expected || (or_float32 && *found == DType::float32))) {
    t.where.refuse("elements are {}, expected {} for dtype {}{}", describe_type(type),
                   stored_as(expected), name(expected),
                   or_float32 && expected != DType::float32
                       ? fmt::format(", or {}", stored_as(DType::float32))
                       : "");
  }
  t.dtype = *found;
  t.file_bytes = file_size_of(t);
  t.sizes = checked_sizes(t, spec, bytes_per_element(t.dtype));
  find_raw_layout(t, type, Handle(H5Dget_create_plist(t), H5Pclose));
  return t;
}

Tensor open_again(const Object& group, const Spec& spec, DType dtype,
                  const std::vector<Index>& sizes) {
  Tensor t = open_tensor(group, spec, dtype);
  if (t.sizes != sizes) {
    t.where.refuse("shape changed since the file was opened");
  }
  return t;
}

}  // namespace kvbench::h5
