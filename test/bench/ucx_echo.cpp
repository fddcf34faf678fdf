// ucx_echo — raw_echo's loop with UCX: tagged messages of UCP over one endpoint.
//
//     UCX_TLS=rc_verbs ucx_echo server ADDRESS
//     UCX_TLS=rc_verbs ucx_echo client ADDRESS PORT --size 64 --count 10000 --depth 16
//
// It sleeps on the worker's descriptor when nothing has progressed. Without UCX_TLS, UCX chooses shared
// memory between programs of one machine. UCX chooses how it sends large messages.
#include <ucp/api/ucp.h>

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <stdexcept>
#include <string>
#include <vector>

#include "bench/echo_options.hpp"

namespace {

void check(ucs_status_t status, char const* what) {
    if (status != UCS_OK)
        throw std::runtime_error{std::string{what} + ": " + ucs_status_string(status)};
}

sockaddr_in socket_address(bench::echo_options const& o) {
    sockaddr_in a{};
    a.sin_family = AF_INET;
    a.sin_port = htons(o.port);
    if (inet_pton(AF_INET, o.address.c_str(), &a.sin_addr) != 1)
        throw std::runtime_error{"not an IPv4 address: " + o.address};
    return a;
}

class worker {
public:
    worker() {
        ucp_config_t* config = nullptr;
        check(ucp_config_read(nullptr, nullptr, &config), "ucp_config_read");
        ucp_params_t p{};
        p.field_mask = UCP_PARAM_FIELD_FEATURES;
        p.features = UCP_FEATURE_TAG | UCP_FEATURE_WAKEUP;
        check(ucp_init(&p, config, &context_), "ucp_init");
        ucp_config_release(config);
        ucp_worker_params_t w{};
        w.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE;
        w.thread_mode = UCS_THREAD_MODE_SINGLE;
        check(ucp_worker_create(context_, &w, &worker_), "ucp_worker_create");
        check(ucp_worker_get_efd(worker_, &descriptor_), "ucp_worker_get_efd");
    }
    ucp_worker_h get() const { return worker_; }

    /// Makes progress until `is_done`; sleeps when there is none.
    template <class IsDone>
    void run_until(IsDone is_done) {
        while (!is_done()) {
            if (ucp_worker_progress(worker_) != 0) continue;
            ucs_status_t const status = ucp_worker_arm(worker_);
            if (status == UCS_ERR_BUSY) continue;
            check(status, "ucp_worker_arm");
            // Verbs promise no event for a completion between the last poll and arming.
            if (ucp_worker_progress(worker_) != 0) continue;
            pollfd p{descriptor_, POLLIN, 0};
            ::poll(&p, 1, -1);
        }
    }
    /// Waits until the peer's device has all that was sent.
    void flush(ucp_ep_h ep) {
        ucp_request_param_t const p{};
        ucs_status_ptr_t const request = ucp_ep_flush_nbx(ep, &p);
        if (!UCS_PTR_IS_PTR(request)) return;
        run_until([&] { return ucp_request_check_status(request) != UCS_INPROGRESS; });
        ucp_request_free(request);
    }

private:
    ucp_context_h context_ = nullptr;
    ucp_worker_h worker_ = nullptr;
    int descriptor_ = -1;
};

// An endpoint, and memory for messages; each slot has one receive or one send at a time.
class echo {
public:
    echo(worker& w, ucp_ep_h ep, bench::echo_options const& o, bool is_server)
        : worker_{w},
          ep_{ep},
          options_{o},
          is_server_{is_server},
          receives_{is_server ? 2 * o.depth + 16 : o.depth},
          bytes_(std::size_t{receives_ + o.depth} * o.size),
          slots_(receives_ + o.depth) {
        for (std::uint32_t i = 0; i < slots_.size(); ++i) slots_[i] = {this, i};
        for (std::uint32_t i = 0; i < receives_; ++i) receive(i);
    }
    echo(echo const&) = delete;
    echo& operator=(echo const&) = delete;

    // One more, which connects.
    void serve() {
        worker_.run_until([this] { return echoed_ == options_.count + 1; });
    }
    void connect() {
        send_next();
        worker_.run_until([this] { return answered_ == 1; });
    }
    void ask() {
        while (asked_ <= std::min<std::uint64_t>(options_.depth, options_.count)) send_next();
        worker_.run_until([this] { return answered_ == options_.count + 1; });
    }

private:
    struct slot {
        echo* owner = nullptr;
        std::uint32_t index = 0;
    };
    static constexpr ucp_tag_t tag = 1;

    void* at(std::uint32_t i) { return &bytes_[std::size_t{i} * options_.size]; }

    void receive(std::uint32_t i) {
        ucp_request_param_t p{};
        p.op_attr_mask =
            UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA | UCP_OP_ATTR_FLAG_NO_IMM_CMPL;
        p.cb.recv = [](void* request, ucs_status_t status, ucp_tag_recv_info_t const*, void* of) {
            ucp_request_free(request);
            if (status == UCS_ERR_CANCELED) return;
            check(status, "receive");
            auto const* s = static_cast<slot*>(of);
            s->owner->on_arrival(s->index);
        };
        p.user_data = &slots_[i];
        ucs_status_ptr_t const request =
            ucp_tag_recv_nbx(worker_.get(), at(i), options_.size, tag, ~ucp_tag_t{0}, &p);
        if (UCS_PTR_IS_ERR(request)) check(UCS_PTR_STATUS(request), "ucp_tag_recv_nbx");
    }
    /// True if the memory is free already.
    bool send(std::uint32_t i) {
        ucp_request_param_t p{};
        p.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA;
        p.cb.send = [](void* request, ucs_status_t status, void* of) {
            ucp_request_free(request);
            check(status, "send");
            auto const* s = static_cast<slot*>(of);
            s->owner->on_sent(s->index);
        };
        p.user_data = &slots_[i];
        ucs_status_ptr_t const request = ucp_tag_send_nbx(ep_, at(i), options_.size, tag, &p);
        if (UCS_PTR_IS_ERR(request)) check(UCS_PTR_STATUS(request), "ucp_tag_send_nbx");
        return request == nullptr;
    }
    void send_next() { send(static_cast<std::uint32_t>(receives_ + asked_++ % options_.depth)); }
    void on_arrival(std::uint32_t i) {
        if (is_server_) {
            if (send(i)) on_sent(i);
            return;
        }
        ++answered_;
        receive(i);
        if (answered_ > 1 && asked_ <= options_.count) send_next();
    }
    void on_sent(std::uint32_t i) {
        if (!is_server_) return;
        ++echoed_;
        receive(i);
    }

    worker& worker_;
    ucp_ep_h ep_;
    bench::echo_options const& options_;
    bool is_server_;
    std::uint32_t receives_;
    std::vector<std::byte> bytes_;
    std::vector<slot> slots_;
    std::uint64_t asked_ = 0;
    std::uint64_t answered_ = 0;
    std::uint64_t echoed_ = 0;
};

void serve(bench::echo_options const& o) {
    worker w;
    ucp_conn_request_h asked = nullptr;
    sockaddr_in const here = socket_address(o);
    ucp_listener_params_t l{};
    l.field_mask = UCP_LISTENER_PARAM_FIELD_SOCK_ADDR | UCP_LISTENER_PARAM_FIELD_CONN_HANDLER;
    l.sockaddr = {reinterpret_cast<sockaddr const*>(&here), sizeof here};
    l.conn_handler = {
        [](ucp_conn_request_h r, void* of) { *static_cast<ucp_conn_request_h*>(of) = r; }, &asked};
    ucp_listener_h door = nullptr;
    check(ucp_listener_create(w.get(), &l, &door), "ucp_listener_create");
    ucp_listener_attr_t name{};
    name.field_mask = UCP_LISTENER_ATTR_FIELD_SOCKADDR;
    check(ucp_listener_query(door, &name), "ucp_listener_query");
    std::printf(
        "listens on %u\n", unsigned{ntohs(reinterpret_cast<sockaddr_in&>(name.sockaddr).sin_port)}
    );
    w.run_until([&] { return asked != nullptr; });
    ucp_ep_params_t p{};
    p.field_mask = UCP_EP_PARAM_FIELD_CONN_REQUEST;
    p.conn_request = asked;
    ucp_ep_h ep = nullptr;
    check(ucp_ep_create(w.get(), &p, &ep), "ucp_ep_create");
    echo e{w, ep, o, true};
    e.serve();
    w.flush(ep);
}

void ask(bench::echo_options const& o) {
    worker w;
    sockaddr_in const there = socket_address(o);
    ucp_ep_params_t p{};
    p.field_mask = UCP_EP_PARAM_FIELD_FLAGS | UCP_EP_PARAM_FIELD_SOCK_ADDR;
    p.flags = UCP_EP_PARAMS_FLAGS_CLIENT_SERVER;
    p.sockaddr = {reinterpret_cast<sockaddr const*>(&there), sizeof there};
    ucp_ep_h ep = nullptr;
    check(ucp_ep_create(w.get(), &p, &ep), "ucp_ep_create");
    echo e{w, ep, o, false};
    e.connect();
    auto const began = std::chrono::steady_clock::now();
    e.ask();
    bench::print_rate(o, began);
}

}  // namespace

int main(int argc, char** argv) {
    return bench::run_echo(argc, argv, "Measures messages and their echoes with UCX.", serve, ask);
}
