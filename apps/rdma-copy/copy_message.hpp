// copy_message.hpp — the messages of a copy.
//
// Each is a message of a message channel whose tag is the kind. Numbers are in network byte order;
// texts have a length (2) before their bytes.
//
//   the client's      HELLO    version (2), direction (1), flags (1), name: of the target at the server, or
//                              of the source there
//   the server's      WELCOME  version (2), errno (2): 0, or why not
//   the receiver's    SLOTS    address (8), key (4), bytes of a slot (4), slots (2)
//                     CREDIT   slot (2): it is written to disk, and may be used again
//                     ABORT    file (8), errno (2): the sender sends no more of it
//                     DONE     file (8), errno (2): it is finished, or never will be
//   the sender's      ENTRY    file (8), type (1), mode (2), mtime: seconds (8) and nanoseconds (4),
//                              size (8), path, target of a symbolic link
//                     BLOCK    file (8), offset (8), bytes (4), slot (2), XXH3-128 (16)
//                     END      file (8), errno (2): all of it is sent, or it cannot be read
//                     FINISHED (0)
//   both sides'       ALIVE    (0), several times in the time after which a silent peer is left
//
// Files are counted from 0. A directory comes before what is in it, and once more, as directory_end,
// behind it: then it gets its mode and time.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <variant>
#include <vector>

namespace copy {

inline constexpr std::uint32_t channel_mode = 0x72637079;
inline constexpr std::uint16_t version = 1;
/// Bytes of a path, and of the target of a link, at most. Source: PATH_MAX, with the null character.
inline constexpr std::size_t text_bytes_max = 4095;
/// Bytes of a message, at most.
inline constexpr std::size_t message_bytes_max = 40 + 2 * (2 + text_bytes_max);
inline constexpr std::uint32_t nanoseconds_max = 999'999'999;

enum class direction : std::uint8_t {
    /// The client sends.
    to_server = 0,
    to_client = 1,
};

struct hello {
    std::uint16_t speaks = version;
    direction way = direction::to_server;
    /// The target is a directory, whether it exists or not.
    bool is_into_directory = false;
    /// Existing files are replaced.
    bool replaces = false;
    std::string name;
};

struct welcome {
    std::uint16_t speaks = version;
    int error = 0;
};

struct slots {
    std::uint64_t address = 0;
    std::uint32_t key = 0;
    std::uint32_t slot_bytes = 0;
    std::uint16_t count = 0;
};

struct credit {
    std::uint16_t slot = 0;
};

struct abort_file {
    std::uint64_t file = 0;
    int error = 0;
};

struct done {
    std::uint64_t file = 0;
    int error = 0;
};

enum class entry_type : std::uint8_t {
    file = 0,
    directory = 1,
    directory_end = 2,
    symbolic_link = 3,
};

struct entry {
    std::uint64_t file = 0;
    entry_type type = entry_type::file;
    std::uint16_t mode = 0;  // permissions only
    std::int64_t seconds = 0;
    std::uint32_t nanoseconds = 0;
    std::uint64_t size = 0;
    std::string path;
    std::string target;
};

using hash = std::array<std::byte, 16>;

struct block {
    std::uint64_t file = 0;
    std::uint64_t offset = 0;
    std::uint32_t bytes = 0;
    std::uint16_t slot = 0;
    hash checksum{};
};

struct end {
    std::uint64_t file = 0;
    int error = 0;
};

struct finished {};
struct alive {};

/// The tag of a message is its place here.
using copy_message = std::
    variant<hello, welcome, slots, credit, abort_file, done, entry, block, end, finished, alive>;

std::vector<std::byte> encode(copy_message const& m);
/// None if it is not a message: another kind, another size, a type, a flag, a mode or a time that does
/// not exist, a text with a null character.
std::optional<copy_message> decode(std::uint64_t tag, std::span<std::byte const> in);

/// True for a path that stays inside of a directory: not empty, relative, without empty components, `.`
/// and `..`.
bool is_inside(std::string const& path) noexcept;

hash hash_of(std::span<std::byte const> bytes) noexcept;

}  // namespace copy
