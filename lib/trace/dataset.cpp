#include "trace/dataset.hpp"

#include <fmt/format.h>

#include <cstddef>
#include <filesystem>
#include <optional>
#include <string>
#include <system_error>

namespace kvbench::h5 {

namespace {

// Deflate cannot shrink by more than 1032; above this ratio the sizes in the file are not real.
constexpr std::uint64_t kMaxRatio = 2000;

// Sizes stay far below what an Index can address even after widening to float32.
constexpr std::uint64_t kMaxBytes = std::uint64_t{1} << 60;

std::string describe_shape(const std::vector<hsize_t>& s) {
  return fmt::format("[{}]", fmt::join(s, ", "));
}

bool is_ieee(hid_t type, std::size_t size, std::size_t exponent_bits, std::size_t fraction_bits,
             std::size_t bias) {
  if (H5Tget_class(type) != H5T_FLOAT || H5Tget_size(type) != size) {
    return false;
  }
  std::size_t sign_at = 0;
  std::size_t exponent_at = 0;
  std::size_t exponent_size = 0;
  std::size_t fraction_at = 0;
  std::size_t fraction_size = 0;
  return H5Tget_fields(type, &sign_at, &exponent_at, &exponent_size, &fraction_at,
                       &fraction_size) >= 0 &&
         H5Tget_precision(type) == 8 * size && H5Tget_offset(type) == 0 &&
         sign_at == 8 * size - 1 && exponent_at == fraction_bits &&
         exponent_size == exponent_bits && fraction_at == 0 && fraction_size == fraction_bits &&
         H5Tget_ebias(type) == bias && H5Tget_norm(type) == H5T_NORM_IMPLIED;
}

bool is_uint16(hid_t type) {
  return H5Tget_class(type) == H5T_INTEGER && H5Tget_size(type) == 2 &&
         H5Tget_sign(type) == H5T_SGN_NONE && H5Tget_precision(type) == 16 &&
         H5Tget_offset(type) == 0;
}

// The stored type as the schema's, if it is one: uint16 can only mean bfloat16.
std::optional<DType> stored_dtype(hid_t type) {
  const H5T_order_t order = H5Tget_order(type);
  if (order != H5T_ORDER_LE && order != H5T_ORDER_BE) {
    return std::nullopt;
  }
  if (is_ieee(type, 2, 5, 10, 15)) {
    return DType::float16;
  }
  if (is_ieee(type, 4, 8, 23, 127)) {
    return DType::float32;
  }
  return is_uint16(type) ? std::optional<DType>(DType::bfloat16) : std::nullopt;
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

void check_contiguous(hid_t dataset, std::uint64_t bytes, std::uint64_t file_bytes,
                      const Place& where) {
  const std::uint64_t stored = H5Dget_storage_size(dataset);
  const haddr_t offset = H5Dget_offset(dataset);
  if (stored < bytes || offset == HADDR_UNDEF) {
    where.refuse(fmt::format("holds {} bytes, expected {} for its shape", stored, bytes));
  }
  if (bytes > file_bytes || offset > file_bytes - bytes) {
    where.refuse(fmt::format("needs {} bytes at {}, expected to lie within the file's {} bytes",
                             bytes, offset, file_bytes));
  }
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
      where.refuse(fmt::format("filter {} cannot be read ({})", i, last_error()));
    }
    const bool available = H5Zfilter_avail(filter) > 0 &&
                           H5Zget_filter_info(filter, &config) >= 0 &&
                           (config & H5Z_FILTER_CONFIG_DECODE_ENABLED) != 0;
    if (!available) {
      where.refuse(
          fmt::format("filter {} ({}) is not available, expected none, shuffle, gzip "
                      "or another one that this HDF5 can decode",
                      filter, label[0] == '\0' ? "unnamed" : label.data()));
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
      chunk.shuffle = true;
      chunk.shuffle_bit = bit;
    } else if (filter == H5Z_FILTER_DEFLATE && i == count - 1) {
      chunk.deflate = true;
      chunk.deflate_bit = bit;
    } else {
      return false;
    }
  }
  // Without filters HDF5 reads straight into our buffer, and only the rows that are asked for.
  return count > 0;
}

void find_raw_layout(Tensor& t, hid_t plist) {
  if (t.big_endian || H5Pget_layout(plist) != H5D_CHUNKED ||
      H5Pget_chunk(plist, 3, t.chunk.dims.data()) != 3) {
    return;
  }
  unsigned options = 0;
  // Unfiltered edge chunks carry no mark in their filter mask; HDF5 knows how to tell.
  if (H5Pget_chunk_opts(plist, &options) < 0 ||
      (options & H5D_CHUNK_DONT_FILTER_PARTIAL_CHUNKS) != 0) {
    return;
  }
  std::uint64_t elements = 1;
  for (const hsize_t size : t.chunk.dims) {
    if (size == 0 ||
        __builtin_mul_overflow(elements, static_cast<std::uint64_t>(size), &elements)) {
      return;
    }
  }
  if (elements > UINT32_MAX || !known_pipeline(plist, t.element_bytes(), t.chunk)) {
    return;
  }
  t.chunk.elements = static_cast<Index>(elements);
  H5D_fill_value_t defined = H5D_FILL_VALUE_UNDEFINED;
  const Handle type(H5Dget_type(t.id.get()), H5Tclose);
  if (H5Pfill_value_defined(plist, &defined) < 0 ||
      (defined != H5D_FILL_VALUE_UNDEFINED &&
       H5Pget_fill_value(plist, type.get(), &t.chunk.fill) < 0)) {
    return;
  }
  t.raw_chunks = true;
}

}  // namespace

std::uint64_t file_size_of(hid_t object) {
  const Handle file(H5Iget_file_id(object), H5Fclose);
  hsize_t size = 0;
  if (!file || H5Fget_filesize(file.get(), &size) < 0) {
    return 0;
  }
  return size;
}

void check_storage(hid_t dataset, std::uint64_t bytes, std::uint64_t file_bytes,
                   const Place& where) {
  const Handle plist(H5Dget_create_plist(dataset), H5Pclose);
  const H5D_layout_t layout = plist ? H5Pget_layout(plist.get()) : H5D_LAYOUT_ERROR;
  if (layout == H5D_LAYOUT_ERROR) {
    where.refuse(fmt::format("storage layout cannot be read ({})", last_error()));
  }
  const bool external = layout == H5D_CONTIGUOUS && H5Pget_external_count(plist.get()) > 0;
  if (external) {
    const std::uint64_t there = bytes_elsewhere(plist.get(), layout);
    if (bytes > there) {
      where.refuse(fmt::format("needs {} bytes, expected at most the {} of its external files",
                               bytes, there));
    }
  } else if (layout == H5D_CONTIGUOUS) {
    check_contiguous(dataset, bytes, file_bytes, where);
  } else if (layout == H5D_COMPACT) {
    const std::uint64_t stored = H5Dget_storage_size(dataset);
    if (stored < bytes) {
      where.refuse(fmt::format("holds {} bytes, expected {} for its shape", stored, bytes));
    }
  } else {
    const std::uint64_t held =
        file_bytes + (layout == H5D_VIRTUAL ? bytes_elsewhere(plist.get(), layout) : 0);
    if (bytes / kMaxRatio > held) {
      where.refuse(fmt::format("needs {} bytes, expected at most {} times the file's {} bytes",
                               bytes, kMaxRatio, held));
    }
  }
  check_filters(plist.get(), where);
}

ElementType check_type(hid_t dataset, DType expected, bool or_float32, const Place& where) {
  const Handle type(H5Dget_type(dataset), H5Tclose);
  if (!type) {
    where.refuse(fmt::format("element type cannot be read ({})", last_error()));
  }
  const auto found = stored_dtype(type.get());
  if (!found || !(*found == expected || (or_float32 && *found == DType::float32))) {
    where.refuse(fmt::format("elements are {}, expected {} for dtype {}{}",
                             describe_type(type.get()), stored_as(expected), name(expected),
                             or_float32 && expected != DType::float32
                                 ? fmt::format(", or {}", stored_as(DType::float32))
                                 : ""));
  }
  return {*found, H5Tget_order(type.get()) == H5T_ORDER_BE};
}

std::vector<Index> check_shape(hid_t dataset, std::size_t rank, std::string_view axes,
                               Index element_bytes, const Place& where) {
  const Handle space(H5Dget_space(dataset), H5Sclose);
  const int found = space && H5Sget_simple_extent_type(space.get()) == H5S_SIMPLE
                        ? H5Sget_simple_extent_ndims(space.get())
                        : 0;
  if (found != static_cast<int>(rank)) {
    where.refuse(fmt::format("rank is {}, expected {}: [{}]", found, rank, axes));
  }
  std::vector<hsize_t> s(rank);
  H5Sget_simple_extent_dims(space.get(), s.data(), nullptr);
  auto bytes = static_cast<std::uint64_t>(element_bytes);
  for (const hsize_t size : s) {
    if (size == 0) {
      where.refuse(fmt::format("shape is {}, expected sizes of at least 1", describe_shape(s)));
    }
    if (__builtin_mul_overflow(bytes, static_cast<std::uint64_t>(size), &bytes) ||
        bytes > kMaxBytes) {
      where.refuse(
          fmt::format("shape is {}, expected a product that fits memory", describe_shape(s)));
    }
  }
  check_storage(dataset, bytes, file_size_of(dataset), where);
  return {s.begin(), s.end()};
}

Tensor open_tensor(hid_t parent, std::string_view name, DType expected, const Place& group) {
  Tensor t;
  t.where = group / name;
  t.id = open_dataset(parent, name, t.where);
  t.file_bytes = file_size_of(t.id.get());
  const ElementType type = check_type(t.id.get(), expected, false, t.where);
  t.dtype = type.dtype;
  t.big_endian = type.big_endian;
  const auto sizes = check_shape(t.id.get(), 3, "heads, tokens, width", t.element_bytes(), t.where);
  t.heads = sizes[0];
  t.rows = sizes[1];
  t.width = sizes[2];
  const Handle plist(H5Dget_create_plist(t.id.get()), H5Pclose);
  find_raw_layout(t, plist.get());
  return t;
}

}  // namespace kvbench::h5
