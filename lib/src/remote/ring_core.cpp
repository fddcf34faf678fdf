#include "remote/ring_core.hpp"

#include <boost/asio/error.hpp>

#include <algorithm>
#include <bit>
#include <cstring>
#include <utility>

#include <rcverbs/batch.hpp>
#include <rcverbs/channel_error.hpp>
#include <rcverbs/op.hpp>
#include <rcverbs/experimental/protocol/option_check.hpp>

namespace rcverbs::detail {

using machines::ring_notice;
using machines::ring_reader_machine;
using machines::ring_size;

namespace {

// Each in a cache line of its own.
constexpr std::size_t counts_stride = 64;

}  // namespace

std::string problem_of(ring_options const& options) {
    option_check check{"ring_options"};
    check.within("ring_bytes", options.ring_bytes, 4096, std::uint32_t{1} << 30)
        .that(std::has_single_bit(options.ring_bytes), "ring_bytes", "is not a power of two")
        .within("records", options.records, 16, ring_records_max)
        .from("finish_timeout", options.finish_timeout, std::chrono::milliseconds{1})
        .inside(protocol::problem_of(options.authentication))
        .that(
            !options.authentication.encrypts_messages,
            "authentication.encrypts_messages",
            "is not for rings"
        );
    return check.problem();
}

// --- both sides ----------------------------------------------------------------------------------

std::vector<std::byte> ring_core::hello(error_code) const {
    auto const bytes = wire::encode(own_hello());
    return {bytes.begin(), bytes.end()};
}

error_code ring_core::judge(std::span<std::byte const> theirs) {
    error_code ec;
    wire::ring_hello const h = wire::decode_ring_hello(theirs, ec);
    return ec ? ec : problem_of(h);
}

// A peer that has rejected this side's hello says its own.
error_code ring_core::reason(std::span<std::byte const> theirs) const {
    error_code foreign;
    wire::ring_hello const h = wire::decode_ring_hello(theirs, foreign);
    return foreign ? error_code{} : problem_of(h);
}

error_code ring_core::problem_of(wire::ring_hello const& theirs) const noexcept {
    if (theirs.version != wire::ring_version) return channel_errc::version_mismatch;
    if (theirs.role == role_) return channel_errc::mode_mismatch;
    return {};
}

error_code ring_core::on_established() {
    error_code ec;
    wire::ring_hello const theirs = wire::decode_ring_hello(peer_hello(), ec);
    if (!ec) ec = begin(theirs);
    if (ec) return ec;
    is_open_ = true;
    on_open();
    return {};
}

void ring_core::violated(channel_errc why) {
    fail(step::transfer, why, close_reason::protocol_error);
}

// --- the writer ----------------------------------------------------------------------------------

ring_writer_core::ring_writer_core(connection over, ring_options const& options)
    : ring_core{std::move(over), wire::ring_role::writer, options.authentication},
      ring_bytes_max_{options.ring_bytes},
      finish_timeout_{options.finish_timeout} {}

ring_writer_core::~ring_writer_core() { keep_if_undrained(mirror_); }

// Each record is a write with immediate data.
error_code ring_core::check_device() {
    return lower().domain().limits().has_immediate_data ? error_code{}
                                                        : error_code{errc::immediate_unsupported};
}

error_code ring_writer_core::prepare() {
    if (error_code const ec = check_device()) return ec;
    if (error_code const ec = counts_.open(counts_max, 0, counts_stride)) return ec;
    // Their addresses do not change.
    rounds_.reserve(rounds_max);
    while (rounds_.size() < rounds_max) rounds_.emplace_back(batch{lower(), round_records});
    for (std::size_t i = 0; i < counts_max; ++i) receive(i);
    return {};
}

error_code ring_writer_core::begin(wire::ring_hello const& theirs) {
    ring_size const size{theirs.ring_bytes, theirs.receives};
    if (!size.is_valid()) return channel_errc::malformed_message;
    if (size.bytes > ring_bytes_max_) return make_error_code(boost::system::errc::value_too_large);
    error_code ec;
    mirror_ = registered_buffer{lower().domain(), size.bytes, access_flags::local_read, ec};
    if (ec) return ec;
    machine_ = machines::ring_writer_machine{size};
    // Each record that is under way has a receive of the reader's.
    keep_for_messages(counts_max + theirs.receives + rounds_max * round_records);
    ring_ = remote_region{theirs.address, size.bytes, theirs.key, access_flags::remote_write};
    record_bytes_max_ = size.record_bytes_max();
    return {};
}

// The first record of a round is posted at once; those that are written before what is posted to the
// order now has run go with one doorbell.
void ring_writer_core::write(std::span<std::byte const> record, protocol::waiter<error_code> who) {
    if (!is_open_) return deliver(std::move(who), errc::not_connected);
    if (is_finishing_) return deliver(std::move(who), errc::operation_in_progress);
    if (record.size() > record_bytes_max_) return deliver(std::move(who), errc::out_of_range);
    bool const is_first = !std::exchange(is_round_, true);
    if (is_first) {
        in_order([self = shared_from_this(), this] {
            is_round_ = false;
            pump();
        });
    }
    if (is_first && pending_.empty() && !is_blocked_) {
        if (auto const where = machine_.add(static_cast<std::uint32_t>(record.size()))) {
            place(*where, record);
            flush();
            publish();
            return deliver(std::move(who), {});
        }
    }
    pending_.push_back({writes_.add(std::move(who)), record});
}

void ring_writer_core::finish(protocol::waiter<error_code> who) {
    if (!is_open_) return deliver(std::move(who), errc::not_connected);
    finishes_.add(std::move(who));
    if (!std::exchange(is_finishing_, true)) await_release();
    pump();
}

// Ends the ring if the reader reports nothing for too long.
void ring_writer_core::await_release() {
    if (!finish_timeout_) return;
    release_limit_.start(*finish_timeout_, [this] {
        fail(step::transfer, channel_errc::peer_not_received, close_reason::timed_out);
    });
}

// Writes what waits, as far as there is room.
void ring_writer_core::pump() {
    if (!is_open_) return;
    while (!pending_.empty() && !is_blocked_) {
        auto const [number, record] = pending_.front();
        // A cancelled one is not there any more.
        if (writes_.contains(number)) {
            auto const bytes = static_cast<std::uint32_t>(record.size());
            auto const where = machine_.add(bytes);
            if (!where) {
                if (auto const wait = machine_.ask(bytes)) notify(*wait);
                break;
            }
            place(*where, record);
            writes_.complete(number, {});
        }
        pending_.pop_front();
    }
    bool const is_last = pending_.empty() && !is_blocked_ && is_finishing_;
    if (is_last && !std::exchange(has_said_end_, true)) notify(machine_.end());
    flush();
    publish();
}

void ring_writer_core::place(
    machines::ring_writer_machine::place const& where, std::span<std::byte const> record
) {
    auto const bytes = static_cast<std::uint32_t>(record.size());
    std::size_t const size = ring_size::header_bytes + record.size();
    mutable_slice const here = mirror_.slice(where.offset, size);
    auto const header = wire::encode(wire::ring_header{bytes, where.sequence});
    std::memcpy(here.data(), header.data(), header.size());
    if (!record.empty())
        std::memcpy(here.bytes().subspan(header.size()).data(), record.data(), record.size());
    ring_notice const notice{ring_notice::kind::record, ring_size::padded(bytes)};
    post(here, ring_.slice(where.offset, size), notice.immediate());
}

void ring_writer_core::notify(ring_notice what) { post({}, ring_.slice(0, 0), what.immediate()); }

void ring_writer_core::post(
    const_slice const& from, remote_region const& to, std::uint32_t immediate
) {
    round& r = rounds_[filling_];
    r.last.emplace(op::write_with_immediate(from, to, immediate));
    r.list.add(*r.last);
    if (r.list.size() == round_records) flush();
}

// Posts what was written. It stays in the mirror until the reader has released it, so a record alone
// needs no completion; of several the last one has one, because their list must not change before.
void ring_writer_core::flush() {
    round& r = rounds_[filling_];
    if (is_blocked_ || r.list.size() == 0) return;
    if (r.list.size() == 1 && !lower().try_start(*r.last)) return r.list.clear();
    r.is_free = false;
    r.list.async_submit(held([this, &r](error_code failed, std::size_t) {
        r.list.clear();
        r.is_free = true;
        if (!std::exchange(is_blocked_, false)) return;
        filling_ = static_cast<std::size_t>(&r - rounds_.data());
        if (!failed) return pump();
        // What was refused is lost; if the connection fails, on_end() follows.
        if (lower().is_open()) fail(step::transfer, failed, close_reason::transport_error);
    }));
    auto const next = std::ranges::find_if(rounds_, &round::is_free);
    is_blocked_ = next == rounds_.end();
    if (!is_blocked_) filling_ = static_cast<std::size_t>(next - rounds_.begin());
}

void ring_writer_core::receive(std::size_t slot) {
    counts_.receive(slot, [this, slot](error_code ec, receive_result const& got, auto bytes) {
        if (!ec) on_counts(slot, got, bytes);  // else on_end() follows
    });
}

void ring_writer_core::on_counts(
    std::size_t slot, receive_result const& got, std::span<std::byte const> bytes
) {
    if (got.is_write) return violated(channel_errc::unexpected_message);
    error_code ec;
    std::uint64_t const used_before = machine_.used_bytes();
    auto const c = wire::decode_ring_counts(bytes, ec);
    if (ec || !machine_.hear({c.consumed, c.posted, c.waits, c.is_finished}))
        return violated(channel_errc::malformed_message);
    receive(slot);
    publish();
    if (is_finishing_ && machine_.used_bytes() < used_before) await_release();
    if (machine_.is_finished() && complete()) {
        lower().async_disconnect(ordered([](error_code const&) {}));
        return;
    }
    pump();
}

void ring_writer_core::publish() noexcept {
    records_ = machine_.records();
    used_bytes_ = machine_.used_bytes();
    waits_ = machine_.waits();
}

void ring_writer_core::on_end(failure const& why) {
    is_open_ = false;
    release_limit_.cancel();
    pending_.clear();
    writes_.fail_all(why.code);
    if (machine_.is_finished()) finishes_.complete_all({});
    else finishes_.fail_all(why.code);
}

// --- the reader ----------------------------------------------------------------------------------

ring_reader_core::~ring_reader_core() { keep_if_undrained(memory_); }

error_code ring_reader_core::prepare() {
    error_code ec = check_device();
    if (ec) return ec;
    memory_ = registered_buffer{
        lower().domain(),
        machine_.size().bytes,
        access_flags::local_write | access_flags::remote_write,
        ec};
    if (ec) return ec;
    if (ec = counts_.open(0, counts_max, counts_stride); ec) return ec;
    for (std::uint32_t i = 0; i < machine_.size().receives; ++i) receive();
    return {};
}

wire::ring_hello ring_reader_core::own_hello() const {
    wire::ring_hello h;
    h.role = wire::ring_role::reader;
    h.ring_bytes = machine_.size().bytes;
    h.receives = machine_.size().receives;
    if (memory_.bytes().empty()) return h;  // for a peer that is rejected
    h.address = memory_.remote().address();
    h.key = memory_.remote().key();
    return h;
}

error_code ring_reader_core::begin(wire::ring_hello const&) { return {}; }

void ring_reader_core::on_open() { tell(); }

void ring_reader_core::receive() {
    lower().async_receive(mutable_slice{}, held([this](error_code ec, receive_result const& got) {
                              if (!ec) on_notice(got);  // else on_end() follows
                          }));
}

void ring_reader_core::on_notice(receive_result const& got) {
    if (!got.is_write || !got.immediate) return violated(channel_errc::unexpected_message);
    ring_reader_machine::arrival const a = machine_.on_notice(*got.immediate, got.size_bytes);
    switch (a.what) {
    case ring_reader_machine::event::violation: return violated(channel_errc::malformed_message);
    case ring_reader_machine::event::wait:
        ++waits_;
        receive();
        return tell();
    case ring_reader_machine::event::end: tell(); return give();
    case ring_reader_machine::event::record: break;
    }
    std::span<std::byte const> const all = memory_.bytes().subspan(a.offset);
    wire::ring_header const header = wire::decode_ring_header(all.first(wire::ring_header_bytes));
    if (header != wire::ring_header{a.record_bytes, a.sequence})
        return violated(channel_errc::malformed_message);
    records_in_ring_.push_back({all.subspan(wire::ring_header_bytes, a.record_bytes), a.end});
    records_ = machine_.records();
    used_bytes_ = machine_.used_bytes();
    give();
}

void ring_reader_core::read(protocol::waiter<error_code, ring_record> who) {
    if (!is_open_ && !end_) return deliver(std::move(who), errc::not_connected, {});
    if (reads_.empty() && has_next()) {
        ring_record next = lend();
        auto const number = next.number_;
        return reads_.hand_over(std::move(who), number, {}, std::move(next));
    }
    if (end_)
        return deliver(std::move(who), machine_.has_ended() ? boost::asio::error::eof : *end_, {});
    reads_.add(std::move(who));
    give();
}

bool ring_reader_core::has_next() const noexcept {
    return !returned_.empty() || given_ < records_in_ring_.size();
}

// REQUIRES: has_next().
ring_record ring_reader_core::lend() {
    std::uint64_t number = first_ + given_;
    if (returned_.empty()) ++given_;
    else number = returned_.extract(returned_.begin()).value();
    arrived& next = records_in_ring_[static_cast<std::size_t>(number - first_)];
    next.lent = ++last_lent_;
    ring_record record;
    record.core_ = std::static_pointer_cast<ring_reader_core>(shared_from_this());
    record.bytes_ = next.bytes;
    record.number_ = number;
    record.lent_ = next.lent;
    return record;
}

// A read that was cancelled, or whose handler was destroyed, has not taken the record. Its release is then
// one of nobody.
void ring_reader_core::take_back(ring_record r) {
    records_in_ring_[static_cast<std::size_t>(r.number_ - first_)].lent = 0;
    returned_.insert(r.number_);
    give();
}

void ring_reader_core::give() {
    while (!reads_.empty() && has_next()) {
        ring_record next = lend();
        std::uint64_t const number = next.number_;
        reads_.hand_over_first(number, {}, std::move(next));
    }
    if (has_next()) return;
    if (machine_.has_ended()) reads_.fail_all(boost::asio::error::eof);
    else if (end_) reads_.fail_all(*end_);
}

void ring_reader_core::release(std::uint64_t number, std::uint32_t lent) {
    auto const index = static_cast<std::size_t>(number - first_);
    if (index >= given_ || records_in_ring_[index].lent != lent) return;
    records_in_ring_[index].is_released = true;
    while (given_ > 0 && records_in_ring_.front().is_released) {
        machine_.release(records_in_ring_.front().end);
        records_in_ring_.pop_front();
        ++first_;
        --given_;
        if (!end_) receive();
    }
    used_bytes_ = machine_.used_bytes();
    tell();
}

// Says what is free, if it is time. Until it is open, nothing can be sent.
void ring_reader_core::tell() {
    if (!is_open_ || counts_.free_sends() == 0) return;
    auto const c = machine_.due();
    if (!c) return;
    auto const message =
        wire::encode(wire::ring_counts_message{c->consumed, c->posted, c->waits, c->is_finished});
    bool const is_last = c->is_finished;
    if (is_last) is_telling_last_ = complete();
    counts_.send(message, [this, is_last](error_code ec) {
        if (is_last) on_told_last();
        else if (!ec) tell();
    });
}

// The writer knows that everything was released; it disconnects, too.
void ring_reader_core::on_told_last() {
    is_telling_last_ = false;
    if (is_leaving_) return close();
    lower().async_disconnect(ordered([](error_code const&) {}));
}

void ring_reader_core::leave_ring() {
    is_leaving_ = true;
    if (!is_telling_last_) close();
}

void ring_reader_core::on_end(failure const& why) {
    is_open_ = false;
    end_ = why.code == errc::peer_disconnected ? make_error_code(channel_errc::peer_closed_early)
                                               : why.code;
    give();
}

}  // namespace rcverbs::detail
