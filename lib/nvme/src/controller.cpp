#include "controller.hpp"

extern "C" {
#include <nvme/types.h>
}

#include <endian.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <iterator>
#include <utility>

namespace rcverbs::nvme::detail {

namespace {

// Properties. Source: Base Specification, 3.1.3.
constexpr std::uint32_t capabilities_at = 0x00;
constexpr std::uint32_t version_at = 0x08;
constexpr std::uint32_t configuration_at = 0x14;
constexpr std::uint32_t state_at = 0x1c;
constexpr std::uint32_t version_1_4 = 0x00010400;
constexpr std::uint32_t is_ready = 1;
constexpr std::uint32_t is_fatal = 2;
constexpr std::uint32_t shutdown_state = 3U << 2;
constexpr std::uint32_t shutdown_occurs = 1U << 2;
constexpr std::uint32_t is_shut_down = 2U << 2;
constexpr std::uint32_t shutdown_field = 3U << 14;
constexpr std::uint64_t ready_timeout = 15;  // in units of 500 ms

constexpr std::size_t event_requests_max = 4;
constexpr std::uint32_t namespace_events = 1U << 8;
constexpr std::uint32_t ana_events = 1U << 11;
constexpr std::uint32_t discovery_events = 1U << 31;
constexpr std::size_t changed_namespaces_max = 1024;
constexpr std::size_t reservation_changes_max = 255;
// Registration preempted, reservation released, reservation preempted.
constexpr std::uint32_t reservation_masks = 0xe;
// How long hosts wait for the end of ana_state::changing.
constexpr std::uint8_t ana_transition_s = 10;
constexpr std::uint16_t keep_alive_unit_100ms = 1;
// The field of dword 14 for vendors' definitions, of which there are none.
constexpr std::uint32_t uuid_index = 0x7f;

enum feature : std::uint8_t {
    arbitration = 0x01,
    power_management = 0x02,
    temperature_threshold = 0x04,
    error_recovery = 0x05,
    volatile_write_cache = 0x06,
    number_of_queues = 0x07,
    async_event_configuration = 0x0b,
    keep_alive_timer = 0x0f,
    host_identifier = 0x81,
    reservation_notification = 0x82,
    reservation_persistence = 0x83,
};

enum log_page : std::uint8_t {
    error_information = 0x01,
    smart = 0x02,
    firmware_slots = 0x03,
    changed_namespace_list = 0x04,
    command_effects = 0x05,
    ana_page = 0x0c,
    discovery_page = 0x70,
    reservation_page = 0x80,
};

// CC of a host that can work with this controller: NVM commands (CSS 0), pages of 4 KiB (MPS 0), round
// robin (AMS 0), entries of 64 and 16 bytes (IOSQES 6, IOCQES 4).
constexpr bool is_right(std::uint32_t configuration) {
    constexpr std::uint32_t chosen_fields = 0x00ff3ff0;
    return (configuration & chosen_fields) == 0x00460000;
}

constexpr completion failed(status why) { return {0, why, false}; }

template <std::size_t N>
void write_text(char (&to)[N], std::string const& text) {
    std::memset(to, ' ', N);
    std::memcpy(to, text.data(), std::min(N, text.size()));
}

template <std::size_t N>
void write_name(char (&to)[N], std::string const& text) {
    std::memset(to, 0, N);
    std::memcpy(to, text.data(), std::min(N - 1, text.size()));
}

// Copies the part of a page that the host asked for.
void write_page(std::span<std::byte> out, std::span<std::byte const> page, std::uint64_t offset) {
    if (offset >= page.size()) return;
    auto const part = page.subspan(static_cast<std::size_t>(offset));
    std::copy_n(part.begin(), std::min(part.size(), out.size()), out.begin());
}

template <class Struct>
std::vector<std::byte> to_bytes(Struct const& s) {
    auto const bytes = std::as_bytes(std::span{&s, 1});
    return {bytes.begin(), bytes.end()};
}

void store_counter(__u8 (&to)[16], std::uint64_t value) {
    store(std::as_writable_bytes(std::span{to}), 0, value);
}

}  // namespace

controller::controller(
    std::uint16_t id,
    std::shared_ptr<subsystem> of,
    host_identity host,
    controller_terms const& terms
)
    : id_{id},
      subsystem_{std::move(of)},
      host_{std::move(host)},
      terms_{terms},
      granted_queues_{(terms.io_queues_max - 1) * 0x10001} {}

std::optional<completion> controller::execute(
    command const& c, std::span<std::byte const> in, std::span<std::byte> out
) {
    static_cast<void>(in);
    if (c.code == opcode::fabrics) {
        if (c.fabrics == fabrics_type::property_get) return get_property(c);
        if (c.fabrics == fabrics_type::property_set) return set_property(c);
        return failed(status::invalid_opcode);
    }
    if (!is_enabled()) return failed(status::command_sequence);
    switch (c.code) {
    case opcode::identify: return identify(c, out);
    case opcode::get_log_page: return get_log_page(c, out);
    case opcode::keep_alive: return completion{};
    case opcode::get_features: return get_features(c, out);
    case opcode::set_features: return set_features(c);
    case opcode::async_event: {
        if (event_requests_.size() >= event_requests_max) return failed(status::aer_limit_exceeded);
        event_requests_.push_back(c.id);
        auto const due = tell();
        if (!due) return std::nullopt;
        // The queue answers the request that was taken: the only one there was.
        return due->what;
    }
    // Commands end soon, so none is aborted: bit 0 of the result says so.
    case opcode::abort: return completion{1, status::success, false};
    default: return failed(status::invalid_opcode);
    }
}

// --- properties ----------------------------------------------------------------------------------

completion controller::get_property(command const& c) const {
    bool const is_wide = (c.dword[0] & 7) == 1;
    if (c.dword[1] == capabilities_at && is_wide) {
        std::uint64_t const queue_entries = terms_.queue_depth_max - 1;
        std::uint64_t const needs_contiguous_queues = 1U << 16;
        std::uint64_t const nvm_command_set = std::uint64_t{1} << 37;
        return {
            queue_entries | needs_contiguous_queues | ready_timeout << 24 | nvm_command_set,
            status::success,
            false};
    }
    if ((c.dword[0] & 7) != 0) return failed(status::invalid_field);
    switch (c.dword[1]) {
    case version_at: return {version_1_4, status::success, false};
    case configuration_at: return {configuration_, status::success, false};
    case state_at: return {state_, status::success, false};
    default: return failed(status::invalid_field);
    }
}

completion controller::set_property(command const& c) {
    bool const is_wide = (c.dword[0] & 7) != 0;
    if (is_wide || c.dword[1] != configuration_at) return failed(status::invalid_field);
    bool const was_asked = (configuration_ & shutdown_field) != 0;
    configuration_ = c.dword[2];
    bool const is_asked = (configuration_ & shutdown_field) != 0;
    std::uint32_t shutdown = 0;
    if (is_asked) shutdown = was_asked ? state_ & (shutdown_state | is_fatal) : shutdown_occurs;
    state_ = shutdown;
    if ((configuration_ & 1) != 0) state_ |= is_right(configuration_) ? is_ready : is_fatal;
    is_enabled_ = (configuration_ & 1) != 0 && (state_ & is_ready) != 0;
    if (!is_enabled()) {
        event_requests_.clear();
        changed_.clear();
        async_events_ = 0;
        namespaces_notice_ = ana_notice_ = reservations_notice_ = {};
        reservation_changes_.clear();
        reservation_masks_.clear();
    }
    return {};
}

bool controller::is_shutting_down() const noexcept {
    return (state_ & shutdown_state) == shutdown_occurs;
}

void controller::on_shut_down(bool is_durable) noexcept {
    state_ = (state_ & ~shutdown_state) | is_shut_down;
    if (!is_durable) state_ |= is_fatal;
}

bool controller::note_life() noexcept {
    if (!has_shown_life()) has_shown_life_ = true;
    // Relaxed: the exchange decides.
    return is_in_grace_.load(std::memory_order_relaxed) && is_in_grace_.exchange(false);
}

void controller::set_keep_alive(std::chrono::milliseconds time) noexcept {
    constexpr std::int64_t unit = std::int64_t{100} * keep_alive_unit_100ms;
    keep_alive_ = std::chrono::milliseconds{(time.count() + unit - 1) / unit * unit};
}

// --- identify ------------------------------------------------------------------------------------

completion controller::identify(command const& c, std::span<std::byte> out) {
    enum structure : std::uint8_t {
        of_namespace = 0x00,
        of_controller = 0x01,
        active_namespaces = 0x02,
        namespace_descriptors = 0x03,
        namespace_of_command_set = 0x05,
        controller_of_command_set = 0x06,
        active_of_command_set = 0x07,
        independent_namespace = 0x08,
    };
    if ((c.dword[4] & uuid_index) != 0) return failed(status::invalid_field);
    if (out.size() < identify_bytes) return failed(status::sgl_data_length_invalid);
    auto const wanted = static_cast<std::uint8_t>(c.dword[0]);
    // The NVM command set is 0.
    bool const is_of_command_set =
        wanted >= namespace_of_command_set && wanted <= active_of_command_set;
    if (is_of_command_set && c.dword[1] >> 24 != 0) return failed(status::invalid_field);
    std::shared_ptr<disk> const d = visible(c.namespace_id);
    switch (wanted) {
    case of_controller: write_controller(out); return {};
    case active_of_command_set:
    case active_namespaces: {
        if (c.namespace_id >= 0xfffffffe) return failed(status::invalid_namespace);
        write_active_namespaces(c.namespace_id, out);
        return {};
    }
    case controller_of_command_set: write_limits(out); return {};
    case namespace_descriptors:
        if (d == nullptr) return failed(status::invalid_namespace);
        note_known(*d);
        write_descriptors(*d, out);
        return {};
    // All-zero for a number without a namespace. Source: Base Specification, 5.17.2.1.
    case of_namespace: break;
    default: return failed(status::invalid_field);
    }
    if (c.namespace_id == 0 ||
        (c.namespace_id > subsystem::namespace_id_max && c.namespace_id != 0xffffffff))
        return failed(status::invalid_namespace);
    nvme_id_ns n{};
    if (c.namespace_id == 0xffffffff) {
        n.lbaf[0].ds = 12;
    } else if (d != nullptr) {
        note_known(*d);
        n.nsze = n.ncap = n.nuse = htole64(d->blocks());
        n.nsfeat = 1U << 4;  // the preferred sizes below are valid
        n.nmic = 1;  // may be shared by controllers
        n.anagrpid = htole32(d->options.ana_group);
        n.dlfeat = 1 | 1U << 3;  // discarded blocks read as zeros; write zeroes may discard
        auto const page = static_cast<std::uint16_t>(4096 / d->geometry.block_bytes - 1);
        n.npwg = n.npwa = n.npdg = n.npda = htole16(page);
        if (std::uint32_t const best = d->geometry.optimal_io_bytes; best > 0)
            n.nows = htole16(static_cast<std::uint16_t>(best / d->geometry.block_bytes - 1));
        // All types; kept over a restart.
        if (d->reservations != nullptr) n.rescap = 0x7f;
        n.nsattr = d->is_read_only() ? 1 : 0;
        std::memcpy(n.nguid, d->uuid.data(), sizeof n.nguid);
        n.lbaf[0].ds = static_cast<__u8>(std::countr_zero(d->geometry.block_bytes));
    }
    std::memcpy(out.data(), &n, sizeof n);
    return {};
}

void controller::note_known(disk const& d) {
    std::lock_guard const lock{known_mutex_};
    known(d.options.id).as = known_disk{d};
}

// Null if the host still knows another disk of that number.
std::shared_ptr<disk> controller::visible(std::uint32_t namespace_id) const {
    auto d = subsystem_->find(namespace_id);
    std::lock_guard const lock{known_mutex_};
    auto const found = known_.find(namespace_id);
    bool const is_withheld = d != nullptr && found != known_.end() && found->second.as &&
                             *found->second.as != known_disk{*d};
    return is_withheld ? nullptr : d;
}

controller::io_disk controller::find_for_io(std::uint32_t namespace_id) {
    auto d = subsystem_->find(namespace_id);
    if (d == nullptr) return {};
    std::lock_guard const lock{known_mutex_};
    auto const found = known_.find(namespace_id);
    bool const is_first = found == known_.end();
    known_namespace& here = is_first ? known(namespace_id) : found->second;
    // A host that connects again goes on at once with the disk that it knows.
    if (is_first) here.as = known_disk{*d};
    bool const is_same = here.as == known_disk{*d};
    return {is_same ? std::move(d) : nullptr, here.counters.get()};
}

// REQUIRES: known_mutex_ is held.
controller::known_namespace& controller::known(std::uint32_t namespace_id) {
    known_namespace& found = known_[namespace_id];
    if (found.counters == nullptr && counters_of) found.counters = counters_of(namespace_id);
    return found;
}

void controller::write_active_namespaces(std::uint32_t after, std::span<std::byte> out) {
    std::set<std::uint32_t> listed;
    std::size_t at = 0;
    for (auto const& [id, each] : subsystem_->disks()) {
        if (id <= after || at >= identify_bytes || visible(id) == nullptr) continue;
        store(out, at, id);
        at += sizeof id;
        listed.insert(id);
    }
    std::lock_guard const lock{known_mutex_};
    for (auto& [id, each] : known_) {
        if (id <= after || listed.contains(id) || !each.as) continue;
        // Now the host knows that this disk is gone; it may look for the one that took its place.
        each.as.reset();
        if (subsystem_->find(id) != nullptr) note_change(id);
    }
}

void controller::write_limits(std::span<std::byte> out) {
    nvme_id_ctrl_nvm i{};
    i.wzsl = write_zeroes_pages_log;
    i.dmrl = discard_ranges_max;
    i.dmrsl = htole32(static_cast<std::uint32_t>(discard_blocks_max));
    i.dmsl = htole64(discard_blocks_max);
    std::memcpy(out.data(), &i, sizeof i);
}

void controller::write_controller(std::span<std::byte> out) const {
    nvme_id_ctrl i{};
    bool const is_discovery = subsystem_->is_discovery();
    write_text(i.sn, subsystem_->serial_number());
    write_text(i.mn, subsystem_->model());
    write_text(i.fr, "0.1");
    i.rab = 6;
    // The subsystem may have several controllers, which reach namespaces in different ways.
    i.cmic = is_discovery ? 0 : 1U << 1 | 1U << 3;
    i.mdts = static_cast<__u8>(std::countr_zero(terms_.transfer_bytes_max) - 12);
    i.cntlid = htole16(id_);
    i.ver = htole32(version_1_4);
    i.oaes = htole32(is_discovery ? discovery_events : namespace_events | ana_events);
    if (!is_discovery) {
        i.anatt = ana_transition_s;
        i.anacap = 0x1f;  // all five states; the group of a namespace may change
        i.anagrpmax = i.nanagrpid = htole32(subsystem::ana_groups_max);
    }
    i.ctratt = htole32(1);  // 128-bit host identifier
    i.cntrltype = is_discovery ? 2 : 1;
    i.acl = 3;
    i.aerl = event_requests_max - 1;
    i.elpe = static_cast<__u8>(subsystem_log::errors_max - 1);
    i.frmw = 1U << 1 | 1;  // one firmware slot, read-only
    i.lpa = 1U << 1 | 1U << 2;  // command effects; log pages with offsets
    i.kas = htole16(keep_alive_unit_100ms);
    i.sqes = 0x66;
    i.cqes = 0x44;
    i.maxcmd = htole16(static_cast<std::uint16_t>(terms_.queue_depth_max));
    i.nn = htole32(is_discovery ? 0 : subsystem::namespace_id_max);
    i.mnan = htole32(is_discovery ? 0 : subsystem::namespace_id_max);
    constexpr std::uint16_t compare = 1;
    constexpr std::uint16_t discard = 1U << 2;
    constexpr std::uint16_t write_zeroes = 1U << 3;
    constexpr std::uint16_t reservations_of_namespaces = 1U << 5;
    i.oncs = htole16(compare | discard | write_zeroes | reservations_of_namespaces);
    // Namespaces with a cache may come later, and hosts ask only once. One flush for all works.
    i.vwc = 1 | 3U << 1;
    constexpr std::uint32_t has_sgls = 1;
    constexpr std::uint32_t has_keyed_sgls = 1U << 2;
    constexpr std::uint32_t has_in_capsule_offset = 1U << 20;
    i.sgls = htole32(has_sgls | has_keyed_sgls | has_in_capsule_offset);
    write_name(i.subnqn, subsystem_->nqn());
    i.ioccsz = htole32((static_cast<std::uint32_t>(command_bytes) + terms_.in_capsule_bytes) / 16);
    i.iorcsz = htole32(1);
    i.msdbd = 1;
    std::memcpy(out.data(), &i, sizeof i);
}

void controller::write_descriptors(disk const& d, std::span<std::byte> out) const {
    constexpr std::uint8_t nguid = 2;
    constexpr std::uint8_t uuid = 3;
    std::size_t at = 0;
    for (std::uint8_t const type : {nguid, uuid}) {
        out[at] = static_cast<std::byte>(type);
        out[at + 1] = static_cast<std::byte>(d.uuid.size());
        std::copy(d.uuid.begin(), d.uuid.end(), out.begin() + static_cast<std::ptrdiff_t>(at) + 4);
        at += 4 + d.uuid.size();
    }
}

// --- log pages -----------------------------------------------------------------------------------

completion controller::get_log_page(command const& c, std::span<std::byte> out) {
    auto const page = static_cast<std::uint8_t>(c.dword[0]);
    bool const keeps_event = (c.dword[0] >> 15 & 1) != 0;
    std::uint64_t const dwords = (c.dword[0] >> 16 | std::uint64_t{c.dword[1] & 0xffff} << 16) + 1;
    std::uint64_t const offset = c.dword[2] | std::uint64_t{c.dword[3]} << 32;
    // The last dword: the command set, of which there is one (0), an index in the place of the offset,
    // and a UUID's index.
    constexpr std::uint32_t indices = 0xffU << 24 | 1U << 23 | uuid_index;
    if (offset % 4 != 0 || (c.dword[4] & indices) != 0) return failed(status::invalid_field);
    // There is one for the whole subsystem. Source: Base Specification, 5.16.1.3.
    bool const is_of_namespace = c.namespace_id != 0 && c.namespace_id != 0xffffffff;
    if (page == smart && is_of_namespace) return failed(status::invalid_field);
    if (dwords * 4 > out.size()) return failed(status::sgl_data_length_invalid);
    out = out.first(static_cast<std::size_t>(dwords * 4));
    bool const is_short = page == ana_page && (c.dword[0] >> 8 & 1) != 0;
    auto const contents = read_log(page, is_short);
    if (contents.empty()) return failed(status::invalid_log_page);
    if (offset > contents.size()) return failed(status::invalid_field);
    write_page(out, contents, offset);
    if (keeps_event) return {};
    // What is due is in the log that the host has now.
    if (page == changed_namespace_list || page == discovery_page) {
        changed_.clear();
        namespaces_notice_ = {};
    }
    if (page == ana_page) ana_notice_ = {};
    // One change is read at a time.
    if (page == reservation_page) {
        if (!reservation_changes_.empty()) reservation_changes_.pop_front();
        reservations_notice_ = {.is_due = !reservation_changes_.empty(), .is_masked = false};
    }
    return {};
}

// The whole log page; empty if the controller has no such page.
std::vector<std::byte> controller::read_log(std::uint8_t page, bool is_short) {
    if (page == error_information) return error_log();
    if (subsystem_->is_discovery())
        return page == discovery_page ? discovery_log() : std::vector<std::byte>{};
    switch (page) {
    case smart: return smart_log();
    case firmware_slots: {
        nvme_firmware_slot slots{};
        slots.afi = 1;
        write_text(slots.frs[0], "0.1");
        return to_bytes(slots);
    }
    case command_effects: return effects_log();
    case changed_namespace_list: return changed_namespaces();
    case ana_page: return ana_log(!is_short);
    case reservation_page: return reservation_log();
    default: return {};
    }
}

void controller::note_error(std::uint16_t queue, command const& c, status why) noexcept {
    subsystem_log& log = subsystem_->log();
    bool const has_blocks = queue != 0 && c.code != opcode::flush && c.code != opcode::fabrics &&
                            c.code != opcode::dataset_management;
    log.note({queue, c.id, why, has_blocks ? c.first_block() : 0, c.namespace_id});
}

// The newest entry first.
std::vector<std::byte> controller::error_log() const {
    subsystem_log::error_list const log = subsystem_->log().errors();
    std::vector<std::byte> page(log.newest.size() * sizeof(nvme_error_log_page));
    std::uint64_t const count = std::min<std::uint64_t>(log.seen, log.newest.size());
    for (std::uint64_t i = 0; i < count; ++i) {
        std::uint64_t const number = log.seen - i;
        subsystem_log::error const& from = log.newest[number % log.newest.size()];
        nvme_error_log_page to{};
        to.error_count = htole64(number);
        to.sqid = htole16(from.queue);
        to.cmdid = htole16(from.command_id);
        to.status_field = htole16(static_cast<std::uint16_t>(static_cast<unsigned>(from.why) << 1));
        to.parm_error_location = 0xffff;  // not told
        to.lba = htole64(from.first_block);
        to.nsid = htole32(from.namespace_id);
        to.trtype = NVMF_TRTYPE_RDMA;
        std::memcpy(page.data() + i * sizeof to, &to, sizeof to);
    }
    return page;
}

std::vector<std::byte> controller::smart_log() const {
    subsystem_log const& log = subsystem_->log();
    nvme_smart_log page{};
    page.avail_spare = 100;
    page.spare_thresh = 10;
    constexpr std::uint16_t kelvin = 273 + 30;
    store(std::as_writable_bytes(std::span{page.temperature}), 0, kelvin);
    // In units of a thousand 512-byte blocks, rounded up. Source: Base Specification, 5.16.1.3.
    auto const units = [](std::uint64_t bytes) { return (bytes + 511'999) / 512'000; };
    store_counter(page.data_units_read, units(log.read_bytes));
    store_counter(page.data_units_written, units(log.written_bytes));
    store_counter(page.host_reads, log.reads);
    store_counter(page.host_writes, log.writes);
    store_counter(page.num_err_log_entries, log.errors().seen);
    return to_bytes(page);
}

std::vector<std::byte> controller::effects_log() const {
    constexpr std::uint32_t is_supported = 1;
    constexpr std::uint32_t changes_contents = 1U << 1;
    std::vector<std::byte> log(4096);
    auto const admin = [&](std::uint8_t code) { store(log, 4UL * code, is_supported); };
    auto const io = [&](std::uint8_t code, std::uint32_t effects) {
        store(log, 1024 + 4UL * code, is_supported | effects);
    };
    for (std::uint8_t const code :
         {opcode::get_log_page,
          opcode::identify,
          opcode::abort,
          opcode::set_features,
          opcode::get_features,
          opcode::async_event,
          opcode::keep_alive})
        admin(code);
    for (std::uint8_t const code :
         {opcode::flush,
          opcode::read,
          opcode::compare,
          opcode::reservation_register,
          opcode::reservation_report,
          opcode::reservation_acquire,
          opcode::reservation_release})
        io(code, 0);
    for (std::uint8_t const code :
         {opcode::write, opcode::write_zeroes, opcode::dataset_management})
        io(code, changes_contents);
    return log;
}

std::vector<std::byte> controller::changed_namespaces() const {
    std::vector<std::byte> list(4096);
    std::size_t at = 0;
    for (std::uint32_t const id : changed_) {
        store(list, at, id);
        at += sizeof id;
    }
    return list;
}

// Groups with what they reach; without the numbers of namespaces if the host wants it so.
std::vector<std::byte> controller::ana_log(bool has_namespaces) const {
    subsystem::ana_rows const all = subsystem_->ana();
    std::vector<std::byte> log(16);
    store(log, 0, all.changes);
    store(log, 8, static_cast<std::uint16_t>(all.groups.size()));
    for (subsystem::ana_row const& row : all.groups) {
        std::vector<std::byte> group(32 + (has_namespaces ? row.namespaces.size() * 4 : 0));
        store(group, 0, row.group);
        store(group, 4, has_namespaces ? static_cast<std::uint32_t>(row.namespaces.size()) : 0U);
        store(group, 8, row.changes);
        group[16] = static_cast<std::byte>(row.state);
        for (std::size_t i = 0; has_namespaces && i < row.namespaces.size(); ++i)
            store(group, 32 + i * 4, row.namespaces[i]);
        log.insert(log.end(), group.begin(), group.end());
    }
    return log;
}

std::vector<std::byte> controller::reservation_log() {
    std::vector<std::byte> log(64);
    if (reservation_changes_.empty()) return log;
    reservation_change const& first = reservation_changes_.front();
    store(log, 0, reservation_changes_seen_ - reservation_changes_.size() + 1);
    log[8] = static_cast<std::byte>(first.what);
    log[9] = static_cast<std::byte>(reservation_changes_.size() - 1);
    store(log, 12, first.namespace_id);
    return log;
}

std::vector<std::byte> controller::discovery_log() const {
    discovery_list const list = discover ? discover() : discovery_list{};
    // The number of changes, and the number of records, which begin at 1024.
    std::vector<std::byte> log(1024);
    store(log, 0, list.generation);
    store(log, 8, std::uint64_t{list.entries.size()});
    for (discovery_entry const& entry : list.entries) {
        nvmf_disc_log_entry e{};
        e.trtype = NVMF_TRTYPE_RDMA;
        e.adrfam = entry.is_ipv6 ? NVMF_ADDR_FAMILY_IP6 : NVMF_ADDR_FAMILY_IP4;
        e.subtype = entry.is_discovery ? 3 : 2;  // this discovery subsystem, or one with disks
        e.treq = NVMF_TREQ_NOT_REQUIRED;
        e.portid = htole16(entry.port_id);
        e.cntlid = 0xffff;  // controllers are made as hosts connect
        e.asqsz = htole16(32);
        write_text(e.trsvcid, std::to_string(entry.port));
        write_name(e.subnqn, entry.nqn);
        write_text(e.traddr, entry.address);
        e.tsas.rdma.qptype = NVMF_RDMA_QPTYPE_CONNECTED;
        e.tsas.rdma.prtype = NVMF_RDMA_PRTYPE_NOT_SPECIFIED;
        e.tsas.rdma.cms = NVMF_RDMA_CMS_RDMA_CM;
        auto const bytes = to_bytes(e);
        log.insert(log.end(), bytes.begin(), bytes.end());
    }
    return log;
}

// --- features ------------------------------------------------------------------------------------

completion controller::get_features(command const& c, std::span<std::byte> out) const {
    auto const which = static_cast<std::uint8_t>(c.dword[0]);
    // Only the current value can be selected.
    if ((c.dword[0] >> 8 & 7) != 0 || (c.dword[4] & uuid_index) != 0)
        return failed(status::invalid_field);
    switch (which) {
    case number_of_queues: return {granted_queues_, status::success, false};
    case volatile_write_cache: return {1, status::success, false};
    case async_event_configuration: return {async_events_, status::success, false};
    case keep_alive_timer:
        return {static_cast<std::uint64_t>(keep_alive_.count()), status::success, false};
    case arbitration:
    case power_management:
    case temperature_threshold:
    case error_recovery: return {};
    case host_identifier:
        if ((c.dword[1] & 1) == 0) return failed(status::invalid_field);
        if (out.size() < host_.id.size()) return failed(status::sgl_data_length_invalid);
        std::copy(host_.id.begin(), host_.id.end(), out.begin());
        return {};
    case reservation_notification: {
        if (visible(c.namespace_id) == nullptr) return failed(status::invalid_namespace);
        auto const found = reservation_masks_.find(c.namespace_id);
        return {found == reservation_masks_.end() ? 0U : found->second, status::success, false};
    }
    case reservation_persistence: {
        auto const d = visible(c.namespace_id);
        if (d == nullptr) return failed(status::invalid_namespace);
        if (d->reservations == nullptr) return failed(status::invalid_field);
        return {d->reservations->is_kept() ? 1U : 0U, status::success, false};
    }
    default: return failed(status::invalid_field);
    }
}

completion controller::set_features(command const& c) {
    std::uint32_t const value = c.dword[1];
    bool const is_to_save = (c.dword[0] >> 31) != 0;
    if (is_to_save) return failed(status::feature_not_saveable);
    if ((c.dword[4] & uuid_index) != 0) return failed(status::invalid_field);
    switch (static_cast<std::uint8_t>(c.dword[0])) {
    case number_of_queues: {
        if (io_queues_ > 0) return failed(status::command_sequence);
        constexpr std::uint32_t reserved = 0xffff;
        if ((value & 0xffff) == reserved || value >> 16 == reserved)
            return failed(status::invalid_field);
        // At least one: a host without any cannot do anything.
        std::uint32_t const left = io_queues_left ? io_queues_left() : terms_.io_queues_max;
        std::uint32_t const most = std::max(left, 1U) - 1;
        granted_queues_ = std::min(value & 0xffff, most) | std::min(value >> 16, most) << 16;
        return {granted_queues_, status::success, false};
    }
    case async_event_configuration: {
        constexpr std::uint32_t health_events = 0xff;  // never raised
        std::uint32_t const notices =
            subsystem_->is_discovery() ? discovery_events : namespace_events | ana_events;
        if ((value & ~(health_events | notices)) != 0) return failed(status::invalid_field);
        async_events_ = value;
        return {};
    }
    case keep_alive_timer: set_keep_alive(std::chrono::milliseconds{value}); return {};
    case volatile_write_cache:
        return value == 1 ? completion{} : failed(status::feature_not_changeable);
    case host_identifier: return failed(status::command_sequence);
    case reservation_notification:
        if ((value & ~reservation_masks) != 0) return failed(status::invalid_field);
        if (c.namespace_id == 0xffffffff) {
            for (auto const& [id, each] : subsystem_->disks()) reservation_masks_[id] = value;
            return {};
        }
        if (visible(c.namespace_id) == nullptr) return failed(status::invalid_namespace);
        reservation_masks_[c.namespace_id] = value;
        return {};
    case reservation_persistence: {
        auto const d = visible(c.namespace_id);
        if (d == nullptr) return failed(status::invalid_namespace);
        if (d->reservations == nullptr || value > 1) return failed(status::invalid_field);
        return d->reservations->keep(value == 1) ? completion{} : failed(status::internal_error);
    }
    default: return failed(status::invalid_field);
    }
}

// --- asynchronous events -------------------------------------------------------------------------

std::optional<controller::event> controller::on_namespace_change(std::uint32_t namespace_id) {
    note_change(namespace_id);
    return tell();
}

void controller::note_change(std::uint32_t namespace_id) {
    std::uint32_t const kind = subsystem_->is_discovery() ? discovery_events : namespace_events;
    if ((async_events_ & kind) == 0) return;
    if (changed_.size() < changed_namespaces_max) changed_.insert(namespace_id);
    namespaces_notice_.is_due = true;
}

std::optional<controller::event> controller::on_ana_change() {
    if ((async_events_ & ana_events) != 0) ana_notice_.is_due = true;
    return tell();
}

std::optional<controller::event> controller::on_reservation_notice(
    std::uint32_t namespace_id, reservation_notice what
) {
    auto const masks = reservation_masks_.find(namespace_id);
    std::uint32_t const bit = 1U << static_cast<unsigned>(what);
    if (!is_enabled() || (masks != reservation_masks_.end() && (masks->second & bit) != 0))
        return std::nullopt;
    if (reservation_changes_.size() == reservation_changes_max) reservation_changes_.pop_front();
    reservation_changes_.push_back({namespace_id, what});
    ++reservation_changes_seen_;
    reservations_notice_.is_due = true;
    return tell();
}

std::optional<controller::event> controller::tell() {
    if (event_requests_.empty()) return std::nullopt;
    auto const may_go = [](notice const& n) { return n.is_due && !n.is_masked; };
    bool const is_discovery = subsystem_->is_discovery();
    // In the order of their urgency. Types: notices, and what the I/O command set has.
    struct kind {
        notice* of;
        std::uint64_t type, what, page;
    };
    kind const kinds[] = {
        {&ana_notice_, 2, 0x03, ana_page},
        {&reservations_notice_, 6, 0x00, reservation_page},
        {&namespaces_notice_,
         2,
         is_discovery ? 0xf0U : 0x00U,
         is_discovery ? discovery_page : changed_namespace_list}};
    auto const next = std::ranges::find_if(kinds, [&](kind const& k) { return may_go(*k.of); });
    if (next == std::end(kinds)) return std::nullopt;
    *next->of = {.is_due = false, .is_masked = true};
    event e{
        event_requests_.front(),
        {next->type | next->what << 8 | next->page << 16, status::success, false}};
    event_requests_.erase(event_requests_.begin());
    return e;
}

}  // namespace rcverbs::nvme::detail
