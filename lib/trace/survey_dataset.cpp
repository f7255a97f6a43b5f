#include "trace/survey_dataset.hpp"

#include <H5FDpublic.h>
#include <sys/time.h>
#if H5_VERSION_GE(1, 13, 0)
#include <H5FDdevelop.h>
#endif

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstring>
#include <limits>
#include <optional>
#include <stdexcept>

namespace kvbench::h5 {

namespace {

// Bounds allocations of corrupt sizes; no attribute of the formats comes near.
constexpr std::size_t kMaxAttributeBytes = std::size_t{1} << 20;
// Compact data lie in an object header, which HDF5 bounds by 64 KiB.
constexpr std::size_t kMaxCompact = std::size_t{1} << 16;
constexpr std::ptrdiff_t kChunksPerStep = 10000;

void expect(bool good) {
  if (!good) {
    throw std::runtime_error(last_error());
  }
}

// -------------------------------------------------------------------------------- file access

struct RawRead {
  haddr_t address = 0;
  std::size_t bytes = 0;
};

// HDF5 gives the callbacks no argument of ours, so their state is global.
struct Driver {
  H5FD_t base{};  // first: HDF5 knows the driver by it
  const InputFile* file = nullptr;
  haddr_t eoa = 0;
  bool is_open = false;
  RawRead* probe = nullptr;  // set: raw data are not read, only noted here
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

herr_t read_part(H5FD_t* /*file*/, H5FD_mem_t type, hid_t /*transfer*/, haddr_t address,
                 std::size_t size, void* to) {
  if (driver.probe != nullptr && type == H5FD_MEM_DRAW) {
    *driver.probe = {address, size};
    return 0;
  }
  const bool fits = size <= driver.file->bytes() && address <= driver.file->bytes() - size;
  return fits && driver.file->read(address, {static_cast<std::uint8_t*>(to), size}).empty() ? 0
                                                                                            : -1;
}

hid_t driver_id() {
  static H5FD_class_t one{};
#if H5_VERSION_GE(1, 13, 2)
  one.version = H5FD_CLASS_VERSION;
  one.value = H5FD_SEC2_VALUE;
#endif
  one.name = "kvbench-survey";
  one.maxaddr = HADDR_MAX / 4;
  one.fc_degree = H5F_CLOSE_WEAK;
  one.open = open_once;
  one.close = [](H5FD_t*) -> herr_t { return 0; };
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

// ----------------------------------------------------------------------------------- attributes

std::vector<std::string> variable_texts(hid_t attribute, hid_t type, std::size_t count) {
  const Handle memory(H5Tcopy(H5T_C_S1), H5Tclose);
  H5Tset_size(memory, H5T_VARIABLE);
  H5Tset_cset(memory, H5Tget_cset(type));
  std::vector<char*> texts(count, nullptr);
  expect(H5Aread(attribute, memory, static_cast<void*>(texts.data())) >= 0);
  std::vector<std::string> out;
  for (char* text : texts) {
    out.emplace_back(text == nullptr ? "" : text);
    H5free_memory(text);
  }
  return out;
}

std::vector<std::string> fixed_texts(hid_t attribute, hid_t type, std::size_t count) {
  const std::size_t size = H5Tget_size(type);
  if (size == 0 || count > kMaxAttributeBytes / size) {
    throw std::runtime_error(
        fmt::format("{} times {} bytes, expected at most {}", count, size, kMaxAttributeBytes));
  }
  // HDF5 converts all paddings to this one.
  const Handle terminated(H5Tcopy(H5T_C_S1), H5Tclose);
  H5Tset_size(terminated, size + 1);
  H5Tset_cset(terminated, H5Tget_cset(type));
  std::string all((size + 1) * count, '\0');
  expect(H5Aread(attribute, terminated, all.data()) >= 0);
  std::vector<std::string> out;
  for (std::size_t i = 0; i < count; ++i) {
    out.emplace_back(&all[i * (size + 1)]);
  }
  return out;
}

void read_attribute(hid_t object, Attribute& a) {
  const Handle id(H5Aopen(object, a.name.c_str(), H5P_DEFAULT), H5Aclose);
  const Handle type(id ? H5Aget_type(id) : -1, H5Tclose);
  const Handle space(type ? H5Aget_space(id) : -1, H5Sclose);
  expect(static_cast<bool>(space));
  a.null = H5Sget_simple_extent_type(space) == H5S_NULL;
  if (!a.null) {
    a.count =
        static_cast<std::uint64_t>(std::max<hssize_t>(H5Sget_simple_extent_npoints(space), 0));
    a.rank = static_cast<std::uint32_t>(std::max(H5Sget_simple_extent_ndims(space), 0));
  }
  const H5T_class_t kind = H5Tget_class(type);
  const std::size_t width = H5Tget_size(type);
  if (kind == H5T_STRING) {
    a.kind = Attribute::Kind::text;
    if (a.count > 0 && a.count <= kMaxTexts) {
      a.texts = H5Tis_variable_str(type) > 0 ? variable_texts(id, type, a.count)
                                             : fixed_texts(id, type, a.count);
    }
    return;
  }
  const bool narrow = width > 0 && width <= 8;
  hid_t memory = -1;
  if (kind == H5T_ENUM && narrow) {
    a.kind = Attribute::Kind::flags;
    memory = H5T_NATIVE_INT64;
  } else if (kind == H5T_INTEGER && narrow) {
    const bool natural = H5Tget_sign(type) == H5T_SGN_NONE;
    a.kind = natural ? Attribute::Kind::natural : Attribute::Kind::integer;
    memory = natural ? H5T_NATIVE_UINT64 : H5T_NATIVE_INT64;
  } else if (kind == H5T_FLOAT) {
    a.kind = Attribute::Kind::real;
    memory = H5T_NATIVE_DOUBLE;
  }
  if (a.kind == Attribute::Kind::other || a.count == 0 || a.count > kMaxAttributeBytes / 8) {
    return;
  }
  a.numbers.resize(a.count);
  expect(H5Aread(id, memory, a.numbers.data()) >= 0);
}

// ------------------------------------------------------------------------------------- datasets

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
  e.bytes = static_cast<std::uint32_t>(
      std::min<std::size_t>(H5Tget_size(type), std::numeric_limits<std::uint32_t>::max()));
  switch (H5Tget_class(type)) {
    case H5T_FLOAT: e.kind = Element::Kind::real; break;
    case H5T_INTEGER:
      e.kind = H5Tget_sign(type) == H5T_SGN_NONE ? Element::Kind::natural : Element::Kind::integer;
      break;
    case H5T_STRING: e.kind = Element::Kind::text; break;
    case H5T_COMPOUND: e.kind = Element::Kind::compound; break;
    case H5T_ENUM: e.kind = Element::Kind::enumeration; break;
    default: break;
  }
  if (e.kind == Element::Kind::real || e.kind == Element::Kind::integer ||
      e.kind == Element::Kind::natural) {
    const H5T_order_t order = H5Tget_order(type);
    e.big_endian = order == H5T_ORDER_BE;
    e.standard = (e.big_endian || order == H5T_ORDER_LE) && is_standard(type);
  }
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

// Where the chunks of the whole grid lie; empty if there are more than kMaxChunks. The probe makes
// H5Dread_chunk a look-up. H5Dget_chunk_info walks over all chunks before it in HDF5 1.10, so a
// table would take quadratic time.
std::vector<Chunk> chunks_of(hid_t dataset, const std::vector<std::uint64_t>& sizes,
                             const std::vector<std::uint64_t>& chunk) {
  std::uint64_t grid = 1;
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    const std::uint64_t steps = chunk[i] == 0 ? 0 : (sizes[i] - 1) / chunk[i] + 1;
    if (sizes[i] == 0 || steps == 0 || steps > kMaxChunks / grid) {
      return {};
    }
    grid *= steps;
  }
  hsize_t written = 0;
  const Handle space(H5Dget_space(dataset), H5Sclose);
  expect(H5Dget_num_chunks(dataset, space, &written) >= 0);
  std::vector<Chunk> out(grid);
  std::vector<hsize_t> at(sizes.size(), 0);
  std::array<std::uint8_t, 16> none{};  // nothing is read
  std::uint64_t found = 0;
  for (Chunk& c : out) {
    if (found == written) {
      break;  // the others have no storage
    }
    if ((&c - out.data()) % kChunksPerStep == 0) {
      begin_step();
    }
    RawRead read;
    std::uint32_t mask = 0;
    driver.probe = &read;
    const herr_t status = H5Dread_chunk(dataset, H5P_DEFAULT, at.data(), &mask, none.data());
    driver.probe = nullptr;
    if (status >= 0) {
      expect(read.bytes <= std::numeric_limits<std::uint32_t>::max());
      c = {read.address, static_cast<std::uint32_t>(read.bytes), mask};
      ++found;
    }
    for (std::size_t i = at.size(); i-- > 0;) {
      at[i] += chunk[i];
      if (at[i] < sizes[i]) {
        break;
      }
      at[i] = 0;
    }
  }
  if (found != written) {
    throw std::runtime_error(
        fmt::format("its table counts {} chunks and holds {}", written, found));
  }
  return out;
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
    const auto points =
        static_cast<std::uint64_t>(std::max<hssize_t>(H5Sget_simple_extent_npoints(space), 0));
    if (d.element.standard && points <= kMaxCompact / d.element.bytes) {
      d.compact.resize(points * d.element.bytes);
      expect(points == 0 ||
             H5Dread(id, type, H5S_ALL, H5S_ALL, H5P_DEFAULT, d.compact.data()) >= 0);
    }
  } else if (layout == H5D_CONTIGUOUS) {
    const bool external = H5Pget_external_count(plist) != 0;
    d.layout = external ? Dataset::Layout::external : Dataset::Layout::contiguous;
    if (!external) {
      const haddr_t address = H5Dget_offset(id);
      d.address = address == HADDR_UNDEF ? kNowhere : address;
      d.bytes = H5Dget_storage_size(id);
    }
  } else if (layout == H5D_CHUNKED) {
    d.layout = Dataset::Layout::chunked;
    std::vector<hsize_t> chunk(sizes.size());
    expect(H5Pget_chunk(plist, static_cast<int>(chunk.size()), chunk.data()) ==
           static_cast<int>(chunk.size()));
    d.chunk.assign(chunk.begin(), chunk.end());
    unsigned options = 0;
    expect(H5Pget_chunk_opts(plist, &options) >= 0);
    d.plain_edges = (options & H5D_CHUNK_DONT_FILTER_PARTIAL_CHUNKS) != 0;
    d.filters = filters_of(plist);
    if (d.element.standard) {
      d.chunks = chunks_of(id, d.sizes, d.chunk);
    }
  }
}

}  // namespace

void limit_steps(std::chrono::microseconds time) {
  driver.step_time = time;
  begin_step();
}

void begin_step() {
  constexpr std::int64_t second = 1'000'000;
  const std::int64_t us = driver.step_time.count();
  const itimerval once{{0, 0}, {us / second, us % second}};
  setitimer(ITIMER_PROF, &once, nullptr);
}

Handle survey_access(const InputFile& file) {
  driver.file = &file;
  Handle access(H5Pcreate(H5P_FILE_ACCESS), H5Pclose);
  H5Pset_driver(access, driver_id(), nullptr);
  return access;
}

Dataset survey_dataset(hid_t dataset) {
  Dataset out;
  try {
    read_dataset(dataset, out);
  } catch (const std::exception& e) {
    out.fault = e.what();
  }
  return out;
}

Attribute survey_attribute(hid_t object, const std::string& name) {
  Attribute out;
  out.name = name;
  try {
    read_attribute(object, out);
  } catch (const std::exception& e) {
    out.fault = e.what();
  }
  return out;
}

}  // namespace kvbench::h5
