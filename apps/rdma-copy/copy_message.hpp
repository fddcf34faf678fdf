// copy_message.hpp — the messages of a copy.
//
// A message of the message channel is a frame: messages of a copy in a row, each with its kind (1) and size (4)
// before it. Numbers are in network byte order; texts have a length (2) before their bytes.
//
//   the client's      HELLO    version (2), direction (1), placing (1), flags (2), number of EXCLUDEs that follow (2), bytes
//                              that the sender sends in a second (8), 0 for no limit, name: of the target at the server,
//                              or of the source there
//                     EXCLUDE  pattern: what is not sent (exclusions.hpp)
//   the server's      WELCOME  version (2), errno (2): 0, or why not
//   the receiver's    SLOTS    address (8), key (4), bytes of a slot (4), slots (2)
//                     CREDIT   slot (2): it is written to disk, and may be used again
//                     BEGIN    file (8), offset (8): the sender begins there
//                     ABORT    file (8), errno (2): the sender sends no more of it
//                     DONE     file (8), errno (2): it is finished, or never will be
//                     WANTED   file (8): what was asked for is not there; the sender sends it under another number, if HELLO
//                              does not say that nothing is written
//                     DELETED  errno (2), path: it is removed from the target, or why not
//                     NOT_KEPT four numbers of entries (8 each) that are finished, and have lost something; before
//                              FINISHED, if one is not 0
//   the sender's      ENTRY    file (8), directory (8): number of the ENTRY that begins the directory that it is in, and has no
//                              end yet, or no_directory of a source; type (1), flags (1), mode (2), user (4), group (4),
//                              mtime: seconds (8) and nanoseconds (4), size (8), identity (16), name, target: of a
//                              symbolic link, or the path of the entry that a hard link is another name of
//                     ATTRIBUTE name, flags (1), a part of its value: an extended attribute of the ENTRY that follows, which is that of
//                              a file or the end of a directory, and in no BATCH
//                     BATCH    slot (2), bytes (4), XXH3-128 (16): the slot has messages in a row, as in a frame: ENTRY,
//                              but of no file that is not asked for, and of no hard link; and FILE
//                     FILE     an ENTRY without holes and other names, and its bytes; in a BATCH only, and not if HELLO
//                              says that files are read back
//                     BLOCK    file (8), offset (8), bytes (4), slot (2), XXH3-128 (16)
//                     HOLE     file (8), offset (8), bytes (8)
//                     END      file (8), errno (2): all of it is sent, or it cannot be read
//                     SKIPPED  errno (2), path: an entry that is not sent, and why
//                     TOTAL    entries (8), bytes (8) of the whole copy, once, when they are counted
//   both sides'       FINISHED (0)
//                     ALIVE    (0), several times in the time after which a silent peer is left
//                     STOPPED  (0): a signal has ended this side; nothing follows
//
// Files are counted from 0. A directory comes before what is in it, and once more, as directory_end with its number as
// directory and without a name, when all that is in it is done: then it gets its mode and time. BLOCKs and HOLEs of a file come in
// order, without a gap, from 0 to its size, or from the offset of BEGIN, for which the sender waits if the
// file has resume_bytes_min or more, or if the copy continues an earlier one. Their offsets and sizes are multiples of block_alignment, except at
// the end of the file.
//
// Entries of a BATCH are done in order, and answered together: DONE, or WANTED for an ENTRY that asks whether the file
// is there. A directory_end may follow what a BATCH has in that directory without waiting for DONE.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace copy {

inline constexpr std::uint32_t channel_mode = 0x72637079;
inline constexpr std::uint16_t version = 5;
/// Bytes of a path, and of the target of a link, at most. Source: PATH_MAX, with the null character.
inline constexpr std::size_t text_bytes_max = 4095;
/// Bytes of a message, at most, FILE without its content.
inline constexpr std::size_t message_bytes_max = 72 + 2 * (2 + text_bytes_max);
/// Bytes of a message's kind and size.
inline constexpr std::size_t message_head_bytes = 5;
/// Bytes of a frame, at most.
inline constexpr std::size_t frame_bytes_max = message_head_bytes + message_bytes_max;
/// Bytes of the value in an ATTRIBUTE, at most.
inline constexpr std::size_t attribute_part_bytes_max = 2048;
/// Bytes of the content of a FILE, at most.
inline constexpr std::size_t whole_bytes_max = std::size_t{64} << 10;
/// Bytes and entries of a BATCH, at most. More do not make it faster, and the receiver begins later.
inline constexpr std::size_t batch_bytes_max = std::size_t{256} << 10;
inline constexpr std::size_t batch_entries_max = 256;
/// Files of this size and more are continued after an interruption.
inline constexpr std::uint64_t resume_bytes_min = std::uint64_t{8} << 20;
/// Of blocks and holes. Source: what O_DIRECT wants of most disks.
inline constexpr std::uint64_t block_alignment = 4096;
/// A limit of the rate is not lower, so that no peer that waits for a block or a batch takes the sender for silent.
inline constexpr std::uint64_t rate_min = std::uint64_t{64} << 10;
inline constexpr std::uint32_t nanoseconds_max = 999'999'999;
/// In place of the number of an entry's directory: the entry is a source.
inline constexpr std::uint64_t no_directory = UINT64_MAX;

enum class direction : std::uint8_t {
    /// The client sends.
    to_server = 0,
    to_client = 1,
};

/// Where a copy goes.
enum class placing : std::uint8_t {
    /// Into the target if that is a directory, else it gets the target's name.
    either = 0,
    /// Into the target, which is a directory, whether it exists or not.
    into = 1,
    /// It gets the target's name, also if there is a directory of that name.
    onto = 2,
};

struct hello {
    std::uint16_t speaks = version;
    direction way = direction::to_server;
    placing where = placing::either;
    /// Existing files are replaced.
    bool replaces = false;
    /// Entries get the user and group of their sources, and all bits of the mode.
    bool keeps_owners = false;
    /// Each file is read back from the disk before it is finished.
    bool verifies = false;
    /// The sender counts all first, and sends TOTAL.
    bool wants_total = false;
    /// What an earlier copy has finished is not copied again.
    bool continues = false;
    /// Nothing is written: the sender asks for all files, and the receiver answers WANTED for each entry that it would
    /// make.
    bool lists = false;
    /// Directories of the target lose what those of the source do not have. Of a client that sends.
    bool deletes = false;
    /// Files and directories get the extended attributes of their sources, and the ACLs.
    bool keeps_attributes = false;
    bool keeps_acls = false;
    std::uint16_t exclusions = 0;
    /// What the sender sends at most; 0 for no limit.
    std::uint64_t bytes_per_second = 0;
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

struct begin {
    std::uint64_t file = 0;
    std::uint64_t offset = 0;
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
    hard_link = 4,
};

using hash = std::array<std::byte, 16>;

struct entry {
    std::uint64_t file = 0;
    /// What it is in, or ends.
    std::uint64_t directory = no_directory;
    entry_type type = entry_type::file;
    /// The file has holes.
    bool is_sparse = false;
    /// The file has other names, so hard links may follow.
    bool has_names = false;
    /// It has extended attributes, or ACLs, that are not sent. Of files, and at the end of directories.
    bool has_attributes = false;
    bool has_acl = false;
    /// The sender asks whether the file is there, with its size and time, as an earlier copy would leave it.
    bool asks = false;
    std::uint16_t mode = 0;  // permissions only
    std::uint32_t user = 0;
    std::uint32_t group = 0;
    std::int64_t seconds = 0;
    std::uint32_t nanoseconds = 0;
    std::uint64_t size = 0;
    /// Two files with the same identity have the same content. Of a directory that begins: identity_of() in
    /// tree.hpp, or zeros.
    hash identity{};
    /// In its directory. Of a source, what it is called.
    std::string name;
    std::string target;

    bool is_source() const noexcept { return directory == no_directory; }
};

struct block {
    std::uint64_t file = 0;
    std::uint64_t offset = 0;
    std::uint32_t bytes = 0;
    std::uint16_t slot = 0;
    hash checksum{};
};

struct hole {
    std::uint64_t file = 0;
    std::uint64_t offset = 0;
    std::uint64_t bytes = 0;
};

struct end {
    std::uint64_t file = 0;
    int error = 0;
};

struct skipped {
    int error = 0;
    std::string path;
};

struct total {
    std::uint64_t entries = 0;
    std::uint64_t bytes = 0;
};

struct finished {};
struct alive {};

/// What is not kept of entries that are finished: numbers of entries.
struct not_kept {
    std::uint64_t special_modes = 0;  // set-user-ID, set-group-ID, the sticky bit
    std::uint64_t owners = 0;
    std::uint64_t attributes = 0;  // extended ones
    std::uint64_t acls = 0;

    friend bool operator==(not_kept const&, not_kept const&) = default;
};

struct batch {
    std::uint16_t slot = 0;
    std::uint32_t bytes = 0;
    hash checksum{};
};

struct whole_file {
    entry what;
    std::vector<std::byte> bytes;
};

struct wanted {
    std::uint64_t file = 0;
};

struct stopped {};

struct exclude {
    std::string pattern;
};

struct deleted {
    int error = 0;
    std::string path;
};

struct attribute {
    std::string name;
    /// The value has another part.
    bool continues = false;
    std::vector<std::byte> value;
};

/// The kind of a message is its place here.
using copy_message = std::variant<
    hello,
    welcome,
    slots,
    credit,
    begin,
    abort_file,
    done,
    entry,
    block,
    hole,
    end,
    skipped,
    total,
    finished,
    alive,
    not_kept,
    batch,
    whole_file,
    wanted,
    stopped,
    exclude,
    deleted,
    attribute>;

std::vector<std::byte> encode(copy_message const& m);
/// None if it is not a message: another kind, another size, a type, a flag, a mode or a time that does
/// not exist, a text with a null character.
std::optional<copy_message> decode(std::uint64_t kind, std::span<std::byte const> in);
/// Adds a message to a frame or a batch.
void append(std::vector<std::byte>& to, copy_message const& m);
/// Takes the first message of a frame or a batch, which becomes shorter; none if it is not a message.
std::optional<copy_message> take_first(std::span<std::byte const>& from);

/// True for a path that stays inside of a directory: not empty, relative, without empty components, `.`
/// and `..`.
bool is_inside(std::string const& path) noexcept;
/// True for a path of one component.
bool is_name(std::string const& text) noexcept;
/// A name in a directory. An empty path is the directory in which paths begin.
std::string joined(std::string directory, std::string const& name);
/// Within the name of a temporary file, behind a dot and the beginning of the name that the file gets.
inline constexpr char temporary_mark[] = ".rdma-copy.";
/// True if a component of the path is the name of a temporary file. Nobody may send such a name: what
/// such files say is believed when a copy continues.
bool is_reserved(std::string const& path) noexcept;

/// True for an extended attribute that may be copied.
bool is_attribute_name(std::string_view name) noexcept;

hash hash_of(std::span<std::byte const> bytes) noexcept;

}  // namespace copy
