#include "trace/hdf5_file.hpp"

#include <H5FDpublic.h>
#include <sys/time.h>
#if H5_VERSION_GE(1, 13, 0)
#include <H5FDdevelop.h>
#endif

#include <algorithm>
#include <array>
#include <cstddef>
#include <limits>
#include <optional>
#include <stdexcept>

namespace kvbench::h5 {

namespace {

// Far above any trace or caches file.
constexpr std::uint64_t kMaxObjects = 4000000;
// Compact data lie in an object header, which HDF5 bounds by 64 KiB.
constexpr std::size_t kMaxCompact = std::size_t{1} << 16;
constexpr std::size_t kChunksPerStep = 10000;

// -------------------------------------------------------------------------------- file access

// HDF5 gives the callbacks no argument of ours, so their state is global.
struct Driver {
  H5FD_t base{};  // first: HDF5 knows the driver by it
  const InputFile* file = nullptr;
  haddr_t eoa = 0;
  bool is_open = false;
  Chunk* probe = nullptr;  // set: raw data are not read, only their place is noted here
  std::chrono::microseconds step_time{};
};
Driver driver;  // NOLINT(cppcoreguidelines-avoid-non-const-global-variables)

H5FD_t* open_once(const char* /*name*/, unsigned flags, hid_t /*access*/, haddr_t /*most*/) {
  if (driver.is_open || (flags & H5F_ACC_RDWR) != 0) {
    return nullptr;
  }
  driver.is_open = true;
  return &driver.base;
}

herr_t close(H5FD_t* /*file*/) {
  driver.is_open = false;
  return 0;
}

herr_t read_part(H5FD_t* /*file*/, H5FD_mem_t type, hid_t /*transfer*/, haddr_t address,
                 std::size_t size, void* to) {
  if (driver.probe != nullptr && type == H5FD_MEM_DRAW) {
    if (size > std::numeric_limits<std::uint32_t>::max()) {
      return -1;
    }
    driver.probe->address = address;
    driver.probe->bytes = static_cast<std::uint32_t>(size);
    return 0;
  }
  const bool fits = size <= driver.file->bytes() && address <= driver.file->bytes() - size;
  return fits && driver.file->read(address, {static_cast<std::uint8_t*>(to), size}).empty() ? 0
                                                                                            : -1;
}

hid_t register_driver() {
  static H5FD_class_t one{};
#if H5_VERSION_GE(1, 13, 2)
  one.version = H5FD_CLASS_VERSION;
  one.value = H5FD_SEC2_VALUE;
#endif
  one.name = "kvbench";
  one.maxaddr = HADDR_MAX / 4;
  one.fc_degree = H5F_CLOSE_STRONG;
  one.open = open_once;
  one.close = close;
  one.get_eoa = [](const H5FD_t*, H5FD_mem_t) { return driver.eoa; };
  one.set_eoa = [](H5FD_t*, H5FD_mem_t, haddr_t address) -> herr_t {
    driver.eoa = address;
    return 0;
  };
  one.get_eof = [](const H5FD_t*, H5FD_mem_t) -> haddr_t { return driver.file->bytes(); };
  one.read = read_part;
  one.write = [](H5FD_t*, H5FD_mem_t, hid_t, haddr_t, std::size_t, const void*) -> herr_t {
    return -1;
  };
  std::ranges::fill(one.fl_map, H5FD_MEM_DEFAULT);
  return H5FDregister(&one);
}

Handle open_file(const InputFile& file) {
  static const hid_t id = register_driver();
  driver.file = &file;
  driver.eoa = 0;
  const Handle access(H5Pcreate(H5P_FILE_ACCESS), H5Pclose);
  H5Pset_driver(access, id, nullptr);
  Handle out(H5Fopen(file.path().c_str(), H5F_ACC_RDONLY, access), H5Fclose);
  if (!out) {
    raise<InputError>("{}: HDF5 file is truncated or damaged, expected a complete one ({})",
                      file.path(), last_error());
  }
  return out;
}

// ------------------------------------------------------------------------------------- datasets

void expect(bool good) {
  if (!good) {
    throw std::runtime_error(last_error());
  }
}

// Whether it is an IEEE float or a plain integer, in either byte order.
bool is_standard(hid_t type) {
  const Handle little(H5Tcopy(type), H5Tclose);
  H5Tset_order(little, H5T_ORDER_LE);
  const Handle half = file_type(DType::float16);
  return std::ranges::any_of(std::array{hid_t{half}, H5T_IEEE_F32LE, H5T_IEEE_F64LE, H5T_STD_U8LE,
                                        H5T_STD_I8LE, H5T_STD_U16LE, H5T_STD_I16LE, H5T_STD_U32LE,
                                        H5T_STD_I32LE, H5T_STD_U64LE, H5T_STD_I64LE},
                             [&](hid_t standard) { return H5Tequal(little, standard) > 0; });
}

Element element_of(hid_t type) {
  Element e;
  e.bytes = H5Tget_size(type);
  switch (H5Tget_class(type)) {
    case H5T_FLOAT: e.kind = Element::Kind::real; break;
    case H5T_INTEGER:
      e.kind = H5Tget_sign(type) == H5T_SGN_NONE ? Element::Kind::natural : Element::Kind::integer;
      break;
    case H5T_STRING: e.kind = Element::Kind::text; return e;
    case H5T_COMPOUND: e.kind = Element::Kind::compound; return e;
    case H5T_ENUM: e.kind = Element::Kind::enumeration; return e;
    default: return e;
  }
  const H5T_order_t order = H5Tget_order(type);
  e.big_endian = order == H5T_ORDER_BE;
  e.standard = (e.big_endian || order == H5T_ORDER_LE) && is_standard(type);
  return e;
}

std::vector<Filter> filters_of(hid_t plist) {
  std::vector<Filter> out;
  const int count = H5Pget_nfilters(plist);
  for (int i = 0; i < count; ++i) {
    unsigned options = 0;
    std::array<unsigned, 1> values{};
    std::size_t n_values = values.size();
    std::array<char, 128> label{};
    unsigned config = 0;
    const H5Z_filter_t id = H5Pget_filter2(plist, static_cast<unsigned>(i), &options, &n_values,
                                           values.data(), label.size() - 1, label.data(), &config);
    expect(id >= 0);
    out.push_back({static_cast<std::uint32_t>(id), n_values > 0 ? values[0] : 0, label.data()});
  }
  return out;
}

// The chunk that begins at `corner`, or nothing. The probe makes H5Dread_chunk a look-up, where
// H5Dget_chunk_info of HDF5 1.10 walks over all chunks before it.
std::optional<Chunk> find_chunk(hid_t dataset, const std::vector<hsize_t>& corner) {
  Chunk out;
  std::array<std::uint8_t, 16> none{};  // nothing is read
  driver.probe = &out;
  const herr_t status = H5Dread_chunk(dataset, H5P_DEFAULT, corner.data(), &out.mask, none.data());
  driver.probe = nullptr;
  return status >= 0 ? std::optional(out) : std::nullopt;
}

// The next corner in C order; the first one behind the last.
void advance(std::vector<hsize_t>& corner, const Dataset& d) {
  for (std::size_t i = corner.size(); i-- > 0;) {
    corner[i] += d.chunk[i];
    if (corner[i] < d.sizes[i]) {
      return;
    }
    corner[i] = 0;
  }
}

void list_chunks(hid_t dataset, hid_t space, Dataset& d) {
  if (std::ranges::count(d.sizes, 0U) + std::ranges::count(d.chunk, 0U) > 0 ||
      grid_size(d) > kMaxChunks) {
    return;
  }
  hsize_t written = 0;
  expect(H5Dget_num_chunks(dataset, space, &written) >= 0);
  d.chunks.resize(grid_size(d));
  std::vector<hsize_t> corner(d.sizes.size(), 0);
  hsize_t found = 0;
  // Chunks behind the last one that is written have no storage.
  for (std::size_t i = 0; i < d.chunks.size() && found < written; ++i) {
    if (i % kChunksPerStep == 0) {
      begin_step();
    }
    if (const auto chunk = find_chunk(dataset, corner)) {
      d.chunks[i] = *chunk;
      ++found;
    }
    advance(corner, d);
  }
  if (found != written) {
    throw std::runtime_error(
        fmt::format("its table counts {} chunks and holds {}", written, found));
  }
}

void read_compact(hid_t id, hid_t type, hid_t space, Dataset& d) {
  const auto points =
      static_cast<std::uint64_t>(std::max<hssize_t>(H5Sget_simple_extent_npoints(space), 0));
  if (d.element.standard && points <= kMaxCompact / d.element.bytes) {
    d.compact.resize(points * d.element.bytes);
    expect(points == 0 || H5Dread(id, type, H5S_ALL, H5S_ALL, H5P_DEFAULT, d.compact.data()) >= 0);
  }
}

void read_contiguous(hid_t id, hid_t plist, Dataset& d) {
  if (H5Pget_external_count(plist) != 0) {
    d.layout = Dataset::Layout::external;
    return;
  }
  d.layout = Dataset::Layout::contiguous;
  const haddr_t address = H5Dget_offset(id);
  d.address = address == HADDR_UNDEF ? kNowhere : address;
  d.bytes = H5Dget_storage_size(id);
}

void read_chunked(hid_t id, hid_t plist, hid_t space, Dataset& d) {
  std::vector<hsize_t> chunk(d.sizes.size());
  expect(H5Pget_chunk(plist, static_cast<int>(chunk.size()), chunk.data()) ==
         static_cast<int>(chunk.size()));
  d.chunk.assign(chunk.begin(), chunk.end());
  unsigned options = 0;
  expect(H5Pget_chunk_opts(plist, &options) >= 0);
  d.plain_edges = (options & H5D_CHUNK_DONT_FILTER_PARTIAL_CHUNKS) != 0;
  d.filters = filters_of(plist);
  if (d.element.standard) {
    list_chunks(id, space, d);
  }
}

void read_dataset(hid_t id, Dataset& d) {
  const Handle type(H5Dget_type(id), H5Tclose);
  expect(static_cast<bool>(type));
  d.element = element_of(type);
  const Handle plist(H5Dget_create_plist(id), H5Pclose);
  expect(static_cast<bool>(plist));
  // First, because HDF5 looks for the sources of virtual data when it is asked for sizes.
  const H5D_layout_t layout = H5Pget_layout(plist);
  if (layout == H5D_VIRTUAL) {
    d.layout = Dataset::Layout::virtual_storage;
    return;
  }
  const Handle space(H5Dget_space(id), H5Sclose);
  expect(static_cast<bool>(space));
  std::vector<hsize_t> sizes(
      static_cast<std::size_t>(std::max(H5Sget_simple_extent_ndims(space), 0)));
  if (!sizes.empty()) {
    H5Sget_simple_extent_dims(space, sizes.data(), nullptr);
  }
  d.sizes.assign(sizes.begin(), sizes.end());
  if (layout == H5D_COMPACT) {
    d.layout = Dataset::Layout::compact;
    read_compact(id, type, space, d);
  } else if (layout == H5D_CONTIGUOUS) {
    read_contiguous(id, plist, d);
  } else if (layout == H5D_CHUNKED) {
    d.layout = Dataset::Layout::chunked;
    read_chunked(id, plist, space, d);
  }
}

}  // namespace

std::uint64_t grid_size(const Dataset& d) {
  std::uint64_t grid = 1;
  for (std::size_t i = 0; i < d.sizes.size(); ++i) {
    const std::uint64_t steps = (d.sizes[i] - 1) / d.chunk[i] + 1;
    if (steps > kMaxChunks / grid) {
      return kMaxChunks + 1;
    }
    grid *= steps;
  }
  return grid;
}

Hdf5File::Hdf5File(const InputFile& file) : id_(open_file(file)), bytes_(file.bytes()) {}

bool Hdf5File::count_object() {
  return ++objects_ <= kMaxObjects;
}

std::shared_ptr<const Dataset> Hdf5File::dataset(haddr_t address, hid_t id) {
  std::shared_ptr<const Dataset>& known = datasets_[address];
  if (known == nullptr) {
    Dataset d;
    try {
      read_dataset(id, d);
    } catch (const std::runtime_error& e) {
      d.fault = e.what();
    }
    known = std::make_shared<const Dataset>(std::move(d));
  }
  return known;
}

void limit_steps(std::chrono::microseconds time) {
  driver.step_time = time;
  begin_step();
}

void begin_step() {
  constexpr std::int64_t second = 1'000'000;
  if (const std::int64_t us = driver.step_time.count(); us > 0) {
    const itimerval once{{0, 0}, {us / second, us % second}};
    setitimer(ITIMER_PROF, &once, nullptr);
  }
}

}  // namespace kvbench::h5
