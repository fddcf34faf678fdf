// store_uuid.hpp — the identifier of bytes on a server.
#pragma once

#include <boost/uuid/name_generator_sha1.hpp>
#include <boost/uuid/string_generator.hpp>

#include <array>
#include <cstddef>
#include <cstring>
#include <string>

namespace rcverbs::nvme::detail {

/// @param kind  The UUID of a kind of store.
/// @param name  What the bytes are called, the same by all who serve them.
inline std::array<std::byte, 16> store_uuid(char const* kind, std::string const& name) {
    boost::uuids::uuid const id =
        boost::uuids::name_generator_sha1{boost::uuids::string_generator{}(kind)}(name);
    std::array<std::byte, 16> bytes{};
    std::memcpy(bytes.data(), id.data, bytes.size());
    return bytes;
}

}  // namespace rcverbs::nvme::detail
