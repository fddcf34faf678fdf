#include "queue.hpp"

#include <boost/asio/bind_executor.hpp>
#include <boost/asio/dispatch.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/prefer.hpp>

#include <algorithm>
#include <cassert>
#include <cstring>
#include <utility>

#include <rcverbs/detail/timeouts.hpp>

#include "probes/probe.hpp"
#include "store_regions.hpp"
#include "target_core.hpp"

namespace rcverbs::nvme::detail {

namespace asio = boost::asio;

namespace {

constexpr std::uint32_t all_namespaces = 0xffffffff;

// The bits of dword 12 that are carried out, or are hints: the number of blocks, FUA (30) and LR (31);
// of write zeroes also DEAC (25). All others are codes of what this target has not: protection
// information, storage tags, directives. Source: NVM Command Set Specification 1.0, 3.2.
constexpr std::uint32_t transfer_fields = 0xc000ffff;
constexpr std::uint32_t write_zeroes_fields = transfer_fields | 1U << 25;
constexpr std::size_t discard_range_bytes = 16;

completion completion_of(error_code const& ec, store_operation operation) noexcept {
    namespace e = boost::system::errc;
    if (!ec) return {};
    if (ec == e::no_space_on_device) return {0, status::capacity_exceeded, false};
    if (ec == e::read_only_file_system || ec == e::operation_not_permitted)
        return {0, status::write_protected, false};
    bool const is_passing = ec == e::resource_unavailable_try_again ||
                            ec == e::device_or_resource_busy || ec == e::interrupted ||
                            ec == e::not_enough_memory || ec == e::no_buffer_space;
    if (is_passing) return {0, status::internal_error, true};
    bool const is_reading =
        operation == store_operation::read || operation == store_operation::compare;
    return {0, is_reading ? status::read_error : status::write_fault, false};
}

bool is_direct(disk const& d) noexcept { return !d.options.store->memory().empty(); }

}  // namespace

// A command, from its arrival to the end of its response.
class queue::slot final : public store_request {
public:
    slot(queue& owner, mutable_slice answer)
        : owner_{owner},
          answer_{answer},
          reply_{owner.connection_, 2} {
        store_request::is_abandoned_ = &owner.is_abandoned_;
    }

    // Keeps the queue alive while the command is under way.
    std::shared_ptr<queue> holder_;
    // The store's thread writes it, too.
    std::atomic<command_state> state_{command_state::idle};
    /// The state in which the statistics count the command as old; idle if it is not.
    command_state old_in_ = command_state::idle;
    /// Where the command arrived; until its response is posted.
    std::uint32_t capsule_ = 0;
    command what_;
    std::size_t size_bytes_received_ = 0;
    std::shared_ptr<disk> disk_;
    /// When the command has arrived, and when the store was asked.
    host_counters::clock::time_point arrived_;
    host_counters::clock::time_point asked_;
    /// Of an I/O command to a namespace; else null. The controller holds them.
    host_counters* counters_ = nullptr;
    /// The data, here; of the size that is transferred.
    mutable_slice local_;
    void* staged_ = nullptr;  // of the common part
    std::size_t staged_bytes_ = 0;
    bool is_own_ = false;  // uses the queue's own part
    /// What follows when there is memory, or when the data has arrived.
    step next_ = step::none;
    std::size_t wanted_bytes_ = 0;
    bool may_be_cut_ = false;
    /// A transfer through the stores, in pieces of the memory's size: the first byte of the disk, all
    /// bytes, and those that are done.
    std::uint64_t first_byte_ = 0;
    std::uint64_t total_bytes_ = 0;
    std::uint64_t done_bytes_ = 0;
    /// When work for the host was posted, in periods of check_transfers(); nothing_posted if none is.
    static constexpr std::uint64_t nothing_posted = UINT64_MAX;
    std::atomic<std::uint64_t> posted_in_{nothing_posted};
    /// What is left to discard, or to flush.
    std::size_t ranges_done_ = 0;
    std::uint64_t discarded_blocks_ = 0;
    std::uint64_t cleared_bytes_ = 0;
    std::vector<std::shared_ptr<disk>> to_flush_;
    /// The flush before a read with FUA is done.
    bool is_flushed_ = false;
    /// Of a shutdown, which goes on with the other stores.
    bool has_failed_flush_ = false;
    /// While a store has the request, the executor has work.
    asio::any_io_executor work_;
    /// When the store has carried out the request, nothing is left but the answer.
    bool is_answer_due_ = false;
    /// Two come to the end of an answer: who posted it, on the store's thread, and its handler. The
    /// second one frees what the command uses.
    std::atomic<unsigned> ends_{0};
    error_code answer_code_;

    queue& owner_;
    mutable_slice const answer_;
    batch reply_;

    // Relaxed: statistics read it on other threads; what the state says is in the queue's order.
    command_state state() const noexcept { return state_.load(std::memory_order_relaxed); }
    void enter(command_state to) noexcept {
        command_state const from = state();
        if (from == to) return;
        assert(may_follow(from, to));
        state_.store(to, std::memory_order_relaxed);
        RCVERBS_PROBE2(nvme_command_state, this, static_cast<std::uint8_t>(to));
    }

    // Prepares the request for a store.
    void ask(store_operation operation, std::uint64_t offset, std::uint64_t size) noexcept {
        operation_ = operation;
        offset_bytes_ = offset;
        store_request::size_bytes_ = size;
        data_ = {};
        is_durable_ = false;
        cleared_bytes_ = 0;
    }
    void set_host(std::uint64_t number) noexcept { host_number_ = number; }
    void set_data(std::span<std::byte> data) noexcept { data_ = data; }
    void set_durable(bool is_durable) noexcept { is_durable_ = is_durable; }
    std::uint64_t range_bytes() const noexcept { return store_request::size_bytes_; }

private:
    void on_end(outcome o) noexcept override {
        auto const now = host_counters::clock::now();
        if (counters_ != nullptr) counters_->note_store(now - asked_);
        if (is_answer_due_ && !o.failure && o.how == end::done) return owner_.answer(*this, now);
        completion c = completion_of(o.failure, operation());
        if (o.how == end::differs) c = {0, status::compare_failed, false};
        if (o.how == end::retry) c = {0, status::internal_error, true};
        if (o.how == end::path_error) c = {0, status::path_error, true};
        enter(command_state::executing);
        // Held until the handler is in the executor: the request may be over before this returns.
        asio::any_io_executor const work = work_;
        asio::dispatch(work, [this, c, why = o.failure] { owner_.on_stored(*this, c, why); });
    }
};

queue::queue(
    std::shared_ptr<target_core> of,
    connection to,
    connect_private_data const& asked,
    std::shared_ptr<staging_memory> staging
)
    : target_work_{asio::prefer(of->executor(), asio::execution::outstanding_work.tracked)},
      target_{std::move(of)},
      connection_{std::move(to)},
      executor_{connection_.get_executor()},
      remote_{connection_.remote_endpoint()},
      local_{connection_.local_endpoint()},
      id_{asked.queue},
      depth_{std::uint32_t{asked.host_send_queue} + 1},
      staging_{std::move(staging)},
      capsule_bytes_{command_bytes + (id_ == 0 ? 0 : target_->options().in_capsule_bytes)},
      memory_{
          connection_.domain(),
          registered_bytes(depth_, static_cast<std::uint32_t>(capsule_bytes_ - command_bytes)),
          access_flags::local_write},
      deadline_{executor_} {}

queue::~queue() = default;

// Calls a member on the queue's executor; at once if this is it.
void queue::run(void (queue::*what)()) {
    asio::dispatch(executor_, [self = shared_from_this(), what] { ((*self).*what)(); });
}

void queue::start() { run(&queue::do_start); }
void queue::close() { run(&queue::do_close); }
void queue::abort() { run(&queue::do_abort); }

void queue::check_transfers(unsigned periods) {
    // A poller that was busy for some periods counts one.
    if (is_check_due_.exchange(true)) return;
    asio::dispatch(executor_, [self = shared_from_this(), periods] {
        self->do_check_transfers(periods);
    });
}

void queue::do_start() {
    auto const self = shared_from_this();
    for (std::uint32_t i = 0; i < depth_; ++i) post_receive(i);
    deadline_.expires_after(rcverbs::detail::bounded(target_->options().connect_timeout));
    deadline_.async_wait([weak = weak_from_this()](error_code const& ec) {
        auto const late = weak.lock();
        if (!ec && late != nullptr && !late->is_trusted()) late->target_->on_late(late);
    });
    std::array<std::byte, connect_private_data::size_bytes> answer{};
    store(std::span<std::byte>{answer}, 2, static_cast<std::uint16_t>(depth_));
    connection_.async_accept(answer, [self](error_code const&) {});
    connection_.async_wait_disconnected([self](error_code const&) {
        self->deadline_.cancel();
        self->is_abandoned_ = true;
        // Requests for events, and commands without memory, hold the queue.
        for (slot* const s : std::exchange(self->waiting_, {})) self->release(*s);
        for (slot* const s : std::exchange(self->without_memory_, {})) self->release(*s);
        self->target_->on_end(self, self->connection_.last_failure());
    });
}

void queue::do_close() {
    is_closing_ = true;
    // No answer reaches the host from here on. An admin queue may still flush for a shutdown.
    if (id_ != 0) is_abandoned_ = true;
    deadline_.cancel();
    if (!connection_.is_open()) return connection_.close();
    connection_.async_disconnect([self = shared_from_this()](error_code const&) {});
}

void queue::do_abort() {
    is_closing_ = true;
    is_abandoned_ = true;
    deadline_.cancel();
    connection_.close();
}

void queue::probe(bool is_on) {
    std::chrono::milliseconds const time = standing_.of->keep_alive();
    connection_.set_keepalive_interval(
        is_on && time.count() > 0 ? std::optional{time / 4} : std::nullopt
    );
}

// A controller that is disabled forgets requests for events.
void queue::drop_waiting() {
    for (slot* const s : std::exchange(waiting_, {})) {
        auto const self = s->holder_;
        release(*s);
        post_receive(s->capsule_);
    }
    start_arrived();
}

void queue::complete(controller::event const& e) {
    auto const asked =
        std::ranges::find_if(waiting_, [&](slot const* s) { return s->what_.id == e.command_id; });
    if (asked == waiting_.end()) return;
    slot& s = **asked;
    waiting_.erase(asked);
    finish(s, e.what);
}

// --- commands ------------------------------------------------------------------------------------

mutable_slice queue::capsule(std::uint32_t index) const {
    return memory_.slice(index * capsule_bytes_, capsule_bytes_);
}

void queue::post_receive(std::uint32_t index) {
    connection_.async_receive(
        capsule(index),
        [self = shared_from_this(), index](error_code const& ec, receive_result const& got) {
            if (!ec && !self->is_closing_) self->on_arrival({index, got.size_bytes});
        }
    );
}

void queue::on_arrival(arrival const& what) {
    slot* const s = arrived_.empty() ? take_slot() : nullptr;
    if (s == nullptr) return arrived_.push_back(what);
    on_command(*s, what);
}

// Starts the commands that wait, as far as there are slots.
void queue::start_arrived() {
    while (!arrived_.empty() && !is_closing_) {
        slot* const s = take_slot();
        if (s == nullptr) return;
        arrival const next = arrived_.front();
        arrived_.pop_front();
        on_command(*s, next);
    }
}

// A slot that is free; null if all are in use.
queue::slot* queue::take_slot() {
    if (free_slots_.empty()) {
        std::size_t const count = slots_.size();
        if (count == slots_per_command * depth_) return nullptr;
        free_slots_.reserve(count + 1);
        slots_.push_back(std::make_unique<slot>(
            *this,
            memory_.slice(depth_ * capsule_bytes_ + count * completion_bytes, completion_bytes)
        ));
        return slots_.back().get();
    }
    slot* const s = free_slots_.back();
    free_slots_.pop_back();
    return s;
}

void queue::on_command(slot& s, arrival const& from) {
    if (from.size_bytes < command_bytes) return connection_.close(errc::malformed_message);
    s.holder_ = shared_from_this();
    ++target_->counted().commands;
    s.arrived_ = host_counters::clock::now();
    s.counters_ = nullptr;
    s.capsule_ = from.capsule;
    s.size_bytes_received_ = from.size_bytes;
    s.what_ = command::decode(capsule(from.capsule).bytes());
    RCVERBS_PROBE3(nvme_command, &s, s.what_.code, s.what_.namespace_id);
    s.enter(command_state::arrived);
    // Relaxed: it is written in the queue's order. An answer that is posted meanwhile may tell the one before.
    head_.store(
        static_cast<std::uint16_t>((head_.load(std::memory_order_relaxed) + 1U) % wraps_at_),
        std::memory_order_relaxed
    );
    if (is_trusted() && controller_->note_life()) target_->on_life(controller_);
    status const wrong = check_data(s);
    if (wrong != status::success) return fail(s, wrong);
    route(s);
}

void queue::route(slot& s) {
    command const& c = s.what_;
    bool const is_connect = c.code == opcode::fabrics && c.fabrics == fabrics_type::connect;
    if (is_connect != (controller_ == nullptr)) return fail(s, status::command_sequence);
    if (is_connect) {
        if (c.data.size_bytes != connect_data::size_bytes)
            return fail(s, status::sgl_data_length_invalid);
        return fetch(s, step::connect);
    }
    bool const is_message =
        c.code == opcode::fabrics && (c.fabrics == fabrics_type::authentication_send ||
                                      c.fabrics == fabrics_type::authentication_receive);
    if (is_message && authenticator_ != nullptr) return authenticate(s);
    if (!is_trusted()) return fail(s, status::authentication_required);
    if (id_ != 0 && c.code != opcode::fabrics) return start_io(s);
    if (id_ != 0) return fail(s, status::invalid_opcode);
    // Some commands have a direction but no data.
    if (c.sends_data() && c.data.size_bytes > 0) return fetch(s, step::execute_admin);
    if (c.takes_data() && c.data.size_bytes > 0)
        return with_memory(s, c.data.size_bytes, step::execute_admin);
    execute_admin(s);
}

// Checks the data pointer against the capsule and the limits, whatever the command does.
status queue::check_data(slot const& s) const {
    if (s.what_.fuse != 0 || s.what_.psdt != psdt_sgl) return status::invalid_field;
    data_pointer const& p = s.what_.data;
    bool const has_data = (s.what_.sends_data() || s.what_.takes_data()) && p.size_bytes > 0;
    if (p.where == data_pointer::place::unknown)
        return has_data || s.what_.sends_data() || s.what_.takes_data() ? status::sgl_type_invalid
                                                                        : status::success;
    if (!has_data) return status::success;
    if (p.size_bytes > target_->options().transfer_bytes_max) return status::invalid_field;
    if (p.where == data_pointer::place::in_capsule) {
        if (s.what_.takes_data()) return status::sgl_type_invalid;
        std::uint64_t const received = s.size_bytes_received_ - command_bytes;
        if (p.address > received) return status::sgl_offset_invalid;
        if (p.size_bytes > received - p.address) return status::sgl_data_length_invalid;
    }
    return status::success;
}

// --- data of the host ----------------------------------------------------------------------------

void queue::fetch(slot& s, step next) {
    data_pointer const& p = s.what_.data;
    if (p.where == data_pointer::place::in_capsule) {
        s.local_ = capsule(s.capsule_).slice(command_bytes + p.address, p.size_bytes);
        s.next_ = next;
        return proceed(s);
    }
    with_memory(s, p.size_bytes, next);
}

void queue::proceed(slot& s) {
    switch (s.next_) {
    case step::none: return;
    case step::connect: return connect(s);
    case step::take_message: return take_message(s);
    case step::give_message: return give_message(s);
    case step::execute_admin: return execute_admin(s);
    case step::start_piece: return start_piece(s);
    case step::start_store: return start_store(s);
    case step::access_memory: return access_memory(s);
    case step::write_memory: return write_memory(s);
    case step::next_discard: return next_discard(s);
    case step::reserve: return reserve(s);
    case step::report_reservations: return report_reservations(s);
    }
}

// Provides memory for the data, and reads it from the host if the host sends any.
void queue::with_memory(slot& s, std::size_t size_bytes, step next, bool may_be_cut) {
    s.next_ = next;
    s.wanted_bytes_ = size_bytes;
    s.may_be_cut_ = may_be_cut;
    without_memory_.push_back(&s);
    if (without_memory_.size() == 1) give_waiting();
    else s.enter(command_state::waiting_for_memory);
}

void queue::give_waiting() {
    auto const self = shared_from_this();  // a command may be the last one that holds it
    while (!without_memory_.empty()) {
        slot& s = *without_memory_.front();
        try {
            if (!give_memory(s)) {
                // Waits until own memory is free, which this command could never use: others that
                // use the common part may do so for ever.
                bool const fits = s.may_be_cut_ || s.wanted_bytes_ <= staging_memory::queue_bytes;
                if (fits) return s.enter(command_state::waiting_for_memory);
                without_memory_.pop_front();
                finish(s, {0, status::internal_error, true});
                continue;
            }
        } catch (boost::system::system_error const& e) {
            without_memory_.pop_front();
            target_->on_no_memory(std::string{"commands fail: "} + e.what());
            finish(s, {0, status::internal_error, true});
            continue;
        }
        without_memory_.pop_front();
        // A transfer in pieces reads them itself.
        if (s.what_.sends_data() && !s.may_be_cut_) read_from_host(s, s.next_);
        else proceed(s);
    }
}

// Common memory, or else the queue's own. False if there is none now.
bool queue::give_memory(slot& s) {
    std::size_t const size = s.wanted_bytes_;
    try {
        if (account_ != nullptr) s.staged_ = staging_->allocate(size, *account_);
    } catch (boost::system::system_error const& e) {
        target_->on_no_memory(std::string{"commands fail: "} + e.what());
    }
    if (s.staged_ != nullptr) {
        s.staged_bytes_ = size;
        s.local_ = staging_->slice_of(s.staged_, size);
        return true;
    }
    bool const fits = size <= staging_memory::queue_bytes || s.may_be_cut_;
    if (is_own_used_ || !fits) return false;
    if (own_.size() == 0)
        own_ = registered_buffer{
            connection_.domain(), staging_memory::queue_bytes, access_flags::local_write};
    is_own_used_ = s.is_own_ = true;
    s.local_ = own_.slice(0, std::min(size, staging_memory::queue_bytes));
    return true;
}

void queue::free_memory(slot& s) {
    bool const is_staged = s.staged_ != nullptr;
    if (is_staged) staging_->free(std::exchange(s.staged_, nullptr), s.staged_bytes_, *account_);
    bool const is_own = std::exchange(s.is_own_, false);
    if (is_own) is_own_used_ = false;
    if (is_staged || is_own) give_waiting();
}

void queue::read_from_host(slot& s, step next) {
    data_pointer const& p = s.what_.data;
    remote_region const source{
        p.address + s.done_bytes_, s.local_.size(), remote_key{p.key}, access_flags::remote_read};
    s.next_ = next;
    s.enter(command_state::receiving_data);
    s.posted_in_ = period_.load();
    connection_.async_read(source, s.local_, [this, &s](error_code const& ec, std::size_t) {
        s.posted_in_ = slot::nothing_posted;
        if (!ec) return proceed(s);
        // An error that was found before posting leaves the connection open.
        if (connection_.is_open()) return fail(s, status::internal_error);
        release(s);
    });
}

// A piece of a read, except the last one, which goes with the completion.
void queue::write_to_host(slot& s) {
    data_pointer const& p = s.what_.data;
    remote_region const target{
        p.address + s.done_bytes_, s.local_.size(), remote_key{p.key}, access_flags::remote_write};
    s.enter(command_state::sending_data);
    s.posted_in_ = period_.load();
    connection_.async_write(s.local_, target, [this, &s](error_code const& ec, std::size_t) {
        s.posted_in_ = slot::nothing_posted;
        if (!ec) return finish_piece(s);
        if (connection_.is_open()) return fail(s, status::internal_error);
        release(s);
    });
}

void queue::do_check_transfers(unsigned periods) {
    is_check_due_ = false;
    ++period_;
    count_old();
    if (is_closing_) return;
    for (auto const& s : slots_) {
        std::uint64_t const posted = s->posted_in_;
        if (posted == slot::nothing_posted || period_ - posted <= periods) continue;
        is_closing_ = true;
        target_->on_stalled_transfer(shared_from_this());
        return connection_.close();
    }
}

// Counts the commands that are old. Reports those of command_report_age, once until there are none.
void queue::count_old() {
    auto const now = host_counters::clock::now();
    std::size_t reported = 0;
    slot const* oldest = nullptr;
    for (auto const& s : slots_) {
        command_state const state = s->state();
        auto const age = now - s->arrived_;
        // A request for an event waits as long as there is none.
        bool const is_awaited =
            state != command_state::idle && state != command_state::waiting_for_event;
        count_as_old(*s, is_awaited && age > old_age ? state : command_state::idle);
        // For others there is transfer_timeout.
        bool const is_here = state == command_state::in_store ||
                             state == command_state::executing ||
                             state == command_state::waiting_for_memory;
        if (!is_here || age < target_->options().command_report_age) continue;
        ++reported;
        if (oldest == nullptr || s->arrived_ < oldest->arrived_) oldest = s.get();
    }
    if (oldest == nullptr) has_reported_old_ = false;
    else if (!std::exchange(has_reported_old_, true))
        target_->on_old_commands(shared_from_this(), reported, oldest->state());
}

void queue::count_as_old(slot& s, command_state in) {
    command_state const before = std::exchange(s.old_in_, in);
    if (before == in) return;
    target_->counted().old_commands.move(before, in);
    if (s.counters_ != nullptr) s.counters_->move_old(before, in);
}

// --- fabrics and admin commands ------------------------------------------------------------------

void queue::connect(slot& s) {
    // Another Connect may have been carried out while the data of this one was read.
    if (controller_ != nullptr || std::exchange(is_connecting_, true))
        return fail(s, status::command_sequence);
    s.enter(command_state::executing);
    asio::dispatch(target_->executor(), [this, &s, data = connect_data::decode(s.local_.bytes())] {
        asio::dispatch(
            executor_,
            [this, &s, done = target_->connect(shared_from_this(), s.what_, data)] {
                on_connected(s, done);
            }
        );
    });
}

void queue::on_connected(slot& s, connect_result const& done) {
    is_connecting_ = false;
    if (done.of != nullptr) {
        controller_ = done.of;
        wraps_at_ = done.depth;
        account_ = done.account;
        if (done.secrets)
            authenticator_ = std::make_unique<authenticator>(*done.secrets, done.of->of().nqn());
    }
    finish(s, done.answer);
}

bool queue::is_trusted() const noexcept {
    return controller_ != nullptr && (authenticator_ == nullptr || authenticator_->is_done());
}

void queue::authenticate(slot& s) {
    command const& c = s.what_;
    // The security protocol of NVMe, and its specific fields. Source: 6.1 and 6.2.
    constexpr std::uint32_t protocol = 0xe9010100;
    if ((c.dword[0] & 0xffffff00) != protocol) return fail(s, status::invalid_field);
    if (c.dword[1] == 0 || c.dword[1] != c.data.size_bytes)
        return fail(s, status::sgl_data_length_invalid);
    if (c.sends_data()) return fetch(s, step::take_message);
    with_memory(s, c.data.size_bytes, step::give_message);
}

void queue::take_message(slot& s) {
    bool const was_trusted = is_trusted();
    if (!authenticator_->on_message(s.local_.bytes())) return fail(s, status::command_sequence);
    if (authenticator_->has_failed()) target_->on_failed_authentication(shared_from_this());
    if (!was_trusted && is_trusted()) target_->on_trusted(shared_from_this());
    finish(s, {});
}

void queue::give_message(slot& s) {
    auto const out = s.local_.bytes();
    std::ranges::fill(out, std::byte{0});
    bool const was_trusted = is_trusted();
    if (!authenticator_->next_message(out)) return fail(s, status::command_sequence);
    if (authenticator_->has_failed()) target_->on_failed_authentication(shared_from_this());
    if (!was_trusted && is_trusted()) target_->on_trusted(shared_from_this());
    finish(s, {});
}

void queue::execute_admin(slot& s) {
    std::span<std::byte> out;
    std::span<std::byte const> in;
    if (s.what_.takes_data()) {
        out = s.local_.bytes();
        std::ranges::fill(out, std::byte{0});
    } else if (s.what_.sends_data()) {
        in = s.local_.bytes();
    }
    bool const was_shutting_down = controller_->is_shutting_down();
    auto const done = controller_->execute(s.what_, in, out);
    if (!done) {
        s.enter(command_state::waiting_for_event);
        return waiting_.push_back(&s);
    }
    if (!controller_->is_enabled()) {
        drop_waiting();
        target_->on_disabled(*controller_);
    }
    if (s.what_.code == opcode::set_features) target_->watch(controller_->id());
    // The host has its answer when all is durable.
    if (!was_shutting_down && controller_->is_shutting_down()) return start_flush(s);
    auto const self = shared_from_this();
    finish(s, *done);
    if (auto const due = controller_->take_due_event()) complete(*due);
}

namespace {

// Reservations bear on them.
constexpr bool is_access(std::uint8_t code) noexcept {
    return code == opcode::read || code == opcode::write || code == opcode::compare ||
           code == opcode::flush || code == opcode::write_zeroes ||
           code == opcode::dataset_management;
}

}  // namespace

// --- I/O -----------------------------------------------------------------------------------------

void queue::start_io(slot& s) {
    command const& c = s.what_;
    if (!controller_->is_enabled()) return fail(s, status::command_sequence);
    if (c.code == opcode::flush && c.namespace_id == all_namespaces) return start_flush(s);
    auto found = controller_->find_for_io(c.namespace_id);
    if (found.of == nullptr) return fail(s, status::invalid_namespace);
    s.disk_ = std::move(found.of);
    s.counters_ = found.counters;
    // Relaxed: a host may see the change with this command or the next one.
    switch (s.disk_->group->state.load(std::memory_order_relaxed)) {
    case ana_state::optimized:
    case ana_state::non_optimized: break;
    case ana_state::inaccessible: return finish(s, {0, status::ana_inaccessible, true});
    case ana_state::persistent_loss: return finish(s, {0, status::ana_persistent_loss, true});
    case ana_state::changing: return finish(s, {0, status::ana_transition, true});
    }
    if (auto const& held = s.disk_->reservations; held != nullptr && is_access(c.code)) {
        access_kind const access = c.code == opcode::read || c.code == opcode::compare
                                       ? access_kind::read
                                       : access_kind::write;
        if (held->conflicts(controller_->host().id, access))
            return fail(s, status::reservation_conflict);
    }
    switch (c.code) {
    case opcode::reservation_register:
    case opcode::reservation_report:
    case opcode::reservation_acquire:
    case opcode::reservation_release: return start_reservation(s);
    case opcode::flush: return start_flush(s);
    case opcode::read:
    case opcode::write:
    case opcode::compare: return start_transfer(s);
    case opcode::write_zeroes: return start_write_zeroes(s);
    case opcode::dataset_management: return start_discard(s);
    default: return fail(s, status::invalid_opcode);
    }
}

// --- reservations --------------------------------------------------------------------------------

void queue::start_reservation(slot& s) {
    command const& c = s.what_;
    if (s.disk_->reservations == nullptr) return fail(s, status::invalid_opcode);
    if (c.code != opcode::reservation_report) {
        std::uint32_t const needed = c.code == opcode::reservation_release ? 8 : 16;
        if (c.data.size_bytes < needed) return fail(s, status::sgl_data_length_invalid);
        return fetch(s, step::reserve);
    }
    bool const has_long_identifiers = (c.dword[1] & 1) != 0;
    if (!has_long_identifiers) return fail(s, status::host_id_inconsistent);
    if (c.data.size_bytes < (std::uint64_t{c.dword[0]} + 1) * 4)
        return fail(s, status::sgl_data_length_invalid);
    with_memory(s, c.data.size_bytes, step::report_reservations);
}

// Waits for the file system.
void queue::reserve(slot& s) {
    command const& c = s.what_;
    auto const done = s.disk_->reservations->execute(c, controller_->host().id, s.local_.bytes());
    target_->on_reservation(controller_->of(), c.namespace_id, done.notices);
    constexpr std::uint32_t preempt_and_abort = 2;
    bool const waits = c.code == opcode::reservation_acquire &&
                       (c.dword[0] & 7) == preempt_and_abort && !done.preempted.empty();
    if (!waits) return finish(s, {0, done.code, false});
    // What they have under way ends before the answer.
    s.enter(command_state::executing);
    s.work_ = asio::prefer(executor_, asio::execution::outstanding_work.tracked);
    target_->when_unused(s.disk_, done.preempted, [this, &s] {
        asio::post(executor_, [this, &s] { finish(s, {}); });
    });
}

void queue::report_reservations(slot& s) {
    auto const out = s.local_.bytes();
    std::ranges::fill(out, std::byte{0});
    std::size_t const wanted = (std::size_t{s.what_.dword[0]} + 1) * 4;
    auto const all = s.disk_->reservations->report();
    std::copy_n(all.begin(), std::min({all.size(), wanted, out.size()}), out.begin());
    finish(s, {});
}

void queue::when_unused(std::shared_ptr<disk> of, std::function<void()> done) {
    asio::dispatch(
        executor_,
        [self = shared_from_this(), of = std::move(of), done = std::move(done)]() mutable {
            bool const is_used = std::ranges::any_of(self->slots_, [&of](auto const& s) {
                // What is being answered has been carried out.
                command_state const state = s->state();
                return s->disk_ != nullptr && s->disk_->state == of->state &&
                       state != command_state::answering && state != command_state::sending_data;
            });
            if (!is_used) return done();
            constexpr std::chrono::milliseconds pause{2};
            auto const timer = std::make_shared<asio::steady_timer>(self->executor_, pause);
            timer->async_wait([self,
                               of = std::move(of),
                               done = std::move(done),
                               timer](error_code const&) mutable {
                self->when_unused(std::move(of), std::move(done));
            });
        }
    );
}

void queue::start_flush(slot& s) {
    if (s.disk_ == nullptr) {
        for (auto const& [id, each] : controller_->of().disks()) s.to_flush_.push_back(each);
        if (s.to_flush_.empty()) {
            if (id_ == 0) controller_->on_shut_down(true);
            return finish(s, {});
        }
        s.disk_ = s.to_flush_.back();
        s.to_flush_.pop_back();
    }
    s.ask(store_operation::flush, 0, 0);
    start_store(s);
}

void queue::start_transfer(slot& s) {
    command const& c = s.what_;
    disk& d = *s.disk_;
    // What such a command reads must be durable, and so must what it is compared with.
    bool const reads_durable = c.code != opcode::write && c.has_force_unit_access() &&
                               d.geometry.has_volatile_cache && !d.is_read_only();
    if (reads_durable && !std::exchange(s.is_flushed_, true)) {
        s.ask(store_operation::flush, 0, 0);
        return start_store(s);
    }
    std::uint64_t const blocks = d.blocks();
    if (c.first_block() >= blocks || c.blocks() > blocks - c.first_block())
        return fail(s, status::lba_range);
    std::uint64_t const size = std::uint64_t{c.blocks()} * d.geometry.block_bytes;
    if (size > target_->options().transfer_bytes_max) return fail(s, status::invalid_field);
    if (size != c.data.size_bytes) return fail(s, status::sgl_data_length_invalid);
    if ((c.dword[2] & ~transfer_fields) != 0) return fail(s, status::invalid_field);
    if (c.code == opcode::write && d.is_read_only()) return fail(s, status::write_protected);
    std::uint64_t const offset = c.first_block() * d.geometry.block_bytes;
    store_operation const operation = c.code == opcode::read    ? store_operation::read
                                      : c.code == opcode::write ? store_operation::write
                                                                : store_operation::compare;
    s.ask(operation, offset, size);
    s.set_durable(c.code == opcode::write && c.has_force_unit_access());
    if (!is_direct(d)) {
        if (c.data.where == data_pointer::place::in_capsule) return fetch(s, step::start_store);
        s.first_byte_ = offset;
        s.total_bytes_ = size;
        return with_memory(s, size, step::start_piece, true);
    }
    if (c.code == opcode::compare) {
        if (c.data.where == data_pointer::place::in_capsule) return fetch(s, step::access_memory);
        s.first_byte_ = offset;
        s.total_bytes_ = size;
        return with_memory(s, size, step::start_piece, true);
    }
    if (c.data.where == data_pointer::place::in_capsule) return fetch(s, step::write_memory);
    try {
        s.local_ = regions_of(d).slice(connection_.domain(), offset, size);
    } catch (boost::system::system_error const& e) {
        target_->on_no_memory(std::string{"commands fail: "} + e.what());
        return finish(s, {0, status::internal_error, true});
    }
    if (c.code == opcode::read) return finish(s, {});
    read_from_host(s, step::access_memory);
}

// Transfers what fits into the memory, and is not done.
void queue::start_piece(slot& s) {
    command const& c = s.what_;
    std::uint64_t const left = s.total_bytes_ - s.done_bytes_;
    if (left < s.local_.size()) s.local_ = s.local_.first(static_cast<std::size_t>(left));
    s.ask(s.operation(), s.first_byte_ + s.done_bytes_, s.local_.size());
    s.set_durable(c.code == opcode::write && c.has_force_unit_access());
    if (c.sends_data())
        return read_from_host(s, is_direct(*s.disk_) ? step::access_memory : step::start_store);
    start_store(s);
}

// A piece has reached its end: the store, or the host.
void queue::finish_piece(slot& s) {
    s.done_bytes_ += s.local_.size();
    start_piece(s);
}

void queue::start_write_zeroes(slot& s) {
    command const& c = s.what_;
    disk const& d = *s.disk_;
    std::uint64_t const blocks = d.blocks();
    if (c.first_block() >= blocks || c.blocks() > blocks - c.first_block())
        return fail(s, status::lba_range);
    if ((c.dword[2] & ~write_zeroes_fields) != 0) return fail(s, status::invalid_field);
    if (d.is_read_only()) return fail(s, status::write_protected);
    std::uint64_t const block_bytes = d.geometry.block_bytes;
    s.ask(store_operation::write_zeroes, c.first_block() * block_bytes, c.blocks() * block_bytes);
    s.set_durable(c.has_force_unit_access());
    if (is_direct(d)) return clear_memory(s, step::access_memory);
    start_store(s);
}

void queue::start_discard(slot& s) {
    command const& c = s.what_;
    constexpr std::uint32_t deallocate = 1U << 2;
    std::size_t const ranges = (c.dword[0] & 0xff) + 1;
    if (c.data.size_bytes < ranges * discard_range_bytes)
        return fail(s, status::sgl_data_length_invalid);
    if ((c.dword[1] & deallocate) == 0) return finish(s, {});  // hints are ignored
    if (s.disk_->is_read_only()) return fail(s, status::write_protected);
    s.ranges_done_ = 0;
    s.discarded_blocks_ = 0;
    fetch(s, step::next_discard);
}

void queue::next_discard(slot& s) {
    if (is_abandoned_) return release(s);
    // What is beyond the limits stays as it is.
    std::size_t const ranges =
        std::min<std::size_t>((s.what_.dword[0] & 0xff) + 1, controller::discard_ranges_max);
    disk const& d = *s.disk_;
    while (s.ranges_done_ < ranges && s.discarded_blocks_ < controller::discard_blocks_max) {
        auto const range = s.local_.bytes().subspan(discard_range_bytes * s.ranges_done_++);
        std::uint64_t count = load<std::uint32_t>(range, 4);
        std::uint64_t const first = load<std::uint64_t>(range, 8);
        if (first > d.blocks() || count > d.blocks() - first) return fail(s, status::lba_range);
        count = std::min(count, controller::discard_blocks_max - s.discarded_blocks_);
        if (count == 0) continue;
        // Ranges that overlap would keep the target busy for nothing.
        s.discarded_blocks_ += count;
        if (s.discarded_blocks_ > d.blocks()) return fail(s, status::invalid_field);
        std::uint64_t const block_bytes = d.geometry.block_bytes;
        s.ask(store_operation::discard, first * block_bytes, count * block_bytes);
        if (is_direct(d)) return clear_memory(s, step::next_discard);
        return start_store(s);
    }
    finish(s, {});
}

void queue::start_store(slot& s) {
    store_operation const o = s.operation();
    bool const has_data =
        o == store_operation::read || o == store_operation::write || o == store_operation::compare;
    if (has_data) s.set_data(s.local_.bytes());
    if (account_ != nullptr) s.set_host(account_->number);
    s.work_ = asio::prefer(executor_, asio::execution::outstanding_work.tracked);
    s.is_answer_due_ = is_answer_due(s);
    // One reading of the clock is enough for a command that has waited for nothing.
    s.asked_ = s.state() == command_state::arrived ? s.arrived_ : host_counters::clock::now();
    s.enter(command_state::in_store);
    s.disk_->options.store->start(s);
}

// What start_store() does for a store in memory; a write's data is there already.
void queue::access_memory(slot& s) {
    auto const range = s.disk_->options.store->memory().subspan(s.offset_bytes(), s.range_bytes());
    bool const is_comparing = s.operation() == store_operation::compare;
    if (is_comparing && std::memcmp(range.data(), s.local_.data(), range.size()) != 0)
        return fail(s, status::compare_failed);
    if (s.done_bytes_ + s.local_.size() < s.total_bytes_) return finish_piece(s);
    if (s.is_durable() && s.disk_->geometry.has_volatile_cache) {
        s.ask(store_operation::flush, 0, 0);
        return start_store(s);
    }
    finish(s, {});
}

// Sets the range of a store in memory to zero, in steps, so that other hosts are served meanwhile.
void queue::clear_memory(slot& s, step next) {
    if (is_abandoned_) return release(s);
    constexpr std::uint64_t step_bytes = 1U << 20;
    auto const size = std::min(step_bytes, s.range_bytes() - s.cleared_bytes_);
    auto const memory = s.disk_->options.store->memory();
    std::ranges::fill(memory.subspan(s.offset_bytes() + s.cleared_bytes_, size), std::byte{0});
    s.cleared_bytes_ += size;
    if (s.cleared_bytes_ == s.range_bytes()) {
        s.next_ = next;
        return proceed(s);
    }
    s.enter(command_state::executing);
    asio::post(executor_, [this, &s, next] { clear_memory(s, next); });
}

void queue::write_memory(slot& s) {
    std::byte* const to = s.disk_->options.store->memory().data() + s.offset_bytes();
    std::memcpy(to, s.local_.data(), s.local_.size());
    access_memory(s);
}

// True if the store's success is the command's.
bool queue::is_answer_due(slot const& s) const {
    store_operation const o = s.operation();
    bool const is_last_flush =
        o != store_operation::flush || (s.to_flush_.empty() && !s.is_flushed_);
    bool const is_last_piece = s.done_bytes_ + s.local_.size() >= s.total_bytes_;
    bool const is_closing = authenticator_ != nullptr && authenticator_->has_failed();
    return id_ != 0 && o != store_operation::discard && is_last_flush && is_last_piece &&
           !is_closing;
}

void queue::on_stored(slot& s, completion const& c, error_code const& why) {
    bool const is_shutdown = id_ == 0;
    // Posted, as below, and since the store is in use.
    if (is_abandoned_ && why == asio::error::operation_aborted)
        return asio::post(executor_, [this, &s] { release(s); });
    if (why) target_->on_store_failure(controller_->of().nqn(), s.disk_, s.operation(), why);
    if (c.code != status::success && !is_shutdown) return finish(s, c);
    if (c.code != status::success) s.has_failed_flush_ = true;
    // Posted, since a store may have completed the request inside start().
    if (s.operation() == store_operation::discard)
        return asio::post(executor_, [this, &s] { next_discard(s); });
    if (!s.to_flush_.empty()) {
        return asio::post(executor_, [this, &s] {
            s.disk_ = s.to_flush_.back();
            s.to_flush_.pop_back();
            start_store(s);
        });
    }
    if (s.is_flushed_ && s.operation() == store_operation::flush)
        return asio::post(executor_, [this, &s] { start_transfer(s); });
    if (is_shutdown) {
        bool const is_durable = !std::exchange(s.has_failed_flush_, false);
        controller_->on_shut_down(is_durable);
        if (!is_durable) return fail(s, status::internal_error);
    }
    if (s.done_bytes_ + s.local_.size() < s.total_bytes_)
        return s.what_.sends_data() ? finish_piece(s) : write_to_host(s);
    finish(s, {});
}

// --- responses -----------------------------------------------------------------------------------

// Makes the answer: the data, if the host takes any, and behind it the completion: one list, one
// doorbell. The capsule is posted before it: with the response the host may send another command.
void queue::encode(slot& s, completion const& c) {
    post_receive(s.capsule_);
    data_pointer const& p = s.what_.data;
    c.encode(s.answer_.bytes(), s.what_.id, id_, head_.load(std::memory_order_relaxed));
    s.reply_.clear();
    bool const has_data = c.code == status::success && s.what_.takes_data() && p.size_bytes > 0;
    if (has_data) {
        s.reply_.add(op::write(
            s.local_,
            remote_region{
                p.address + s.done_bytes_,
                s.local_.size(),
                remote_key{p.key},
                access_flags::remote_write}
        ));
    }
    // A host whose key is not invalidated does so itself.
    if (p.is_invalidated && connection_.domain().limits().has_send_with_invalidate)
        s.reply_.add(op::send_with_invalidate(s.answer_, remote_key{p.key}));
    else s.reply_.add(op::send(s.answer_));
    s.enter(command_state::answering);
    s.posted_in_ = period_.load();
}

// The store has succeeded, on any thread: a hand-over to the target's would cost more than the answer.
void queue::answer(slot& s, host_counters::clock::time_point now) {
    count(s, {}, now);
    asio::any_io_executor const work = s.work_;
    s.ends_ = 0;
    std::unique_lock lock{answering_};
    encode(s, {});
    s.reply_.async_submit([this, &s](error_code const& ec, std::size_t) {
        s.answer_code_ = ec;
        if (++s.ends_ == 2) on_answered(s, ec, false);
    });
    lock.unlock();
    if (++s.ends_ == 2) asio::post(work, [this, &s] { on_answered(s, s.answer_code_, false); });
}

void queue::finish(slot& s, completion const& c) {
    count(s, c, host_counters::clock::now());
    // With this response the host is told. The end of an earlier one may come later than the command
    // that this one answers: then the queue must not end yet.
    bool const is_last = authenticator_ != nullptr && authenticator_->has_failed();
    std::lock_guard const lock{answering_};
    encode(s, c);
    s.reply_.async_submit([this, &s, is_last](error_code const& ec, std::size_t) {
        on_answered(s, ec, is_last);
    });
}

void queue::on_answered(slot& s, error_code const& ec, bool is_last) {
    s.posted_in_ = slot::nothing_posted;
    auto const self = std::exchange(s.holder_, nullptr);
    release(s);
    // Without a response the host would wait for ever.
    if (ec) return connection_.close();
    if (is_last) close();
    start_arrived();
}

// Frees what the command uses. The last thing that happens to the command, and maybe to the queue.
void queue::release(slot& s) {
    auto const self = std::exchange(s.holder_, nullptr);
    s.total_bytes_ = 0;
    s.done_bytes_ = 0;
    s.disk_.reset();
    s.to_flush_.clear();
    s.is_flushed_ = false;
    s.local_ = {};
    s.work_ = {};
    s.enter(command_state::idle);
    count_as_old(s, command_state::idle);
    --target_->counted().commands;
    free_memory(s);
    free_slots_.push_back(&s);
}

void queue::count(slot const& s, completion const& c, host_counters::clock::time_point now) {
    if (s.counters_ != nullptr) s.counters_->note(s.what_, c.code, now - s.arrived_);
    target_core::counters& all = target_->counted();
    if (c.code != status::success) {
        ++all.failed_commands;
        if (controller_ != nullptr) controller_->note_error(id_, s.what_, c.code);
        return;
    }
    if (id_ == 0 || s.what_.code == opcode::fabrics) return;
    subsystem_log& mine = controller_->of().log();
    if (s.what_.code == opcode::read) {
        ++all.reads, ++mine.reads;
        all.read_bytes += s.what_.data.size_bytes;
        mine.read_bytes += s.what_.data.size_bytes;
    } else if (s.what_.code == opcode::write) {
        ++all.writes, ++mine.writes;
        all.written_bytes += s.what_.data.size_bytes;
        mine.written_bytes += s.what_.data.size_bytes;
    } else {
        ++all.other_commands;
    }
}

}  // namespace rcverbs::nvme::detail
