// block_protocol.hpp — the requests of block_server. The body of a write, and of the answer to a read, is the data; a status is an errno.
#pragma once

#include <boost/endian/arithmetic.hpp>

#include <cstddef>
#include <cstdint>

namespace block {

enum operation : std::uint32_t {
    size = 1,  // the answer's body is a big_uint64_t
    read = 2,
    write = 3,
    flush = 4,
};

// Before the body of a read or a write.
struct range {
    boost::endian::big_uint64_t offset = 0;
    boost::endian::big_uint32_t bytes = 0;
};

constexpr std::size_t bytes_max = 1 << 20;  // of a read or a write

}  // namespace block
