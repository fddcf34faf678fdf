# The table of docs/benchmarks/scale.md, "One process, one poller, on the fabric": copy its figures here when it is measured anew.
set terminal svg size 720,320 font "sans-serif,11"
set multiplot layout 1,2
set logscale x 10
set xlabel "connections of one poller"
set format x "10^{%L}"
set yrange [0:*]
set grid ytics linecolor rgb "#dddddd"
set key top right
$figures << EOD
1     266 37.0 57 21.1
10     55 17.6 20 16.4
100    41 18.3 20 10.5
1000   42 20.1 26  9.9
10000  45 20.4 31 13.5
EOD
set title "processor time, us for each connection"
plot [0.8:12000] $figures using 1:2 with linespoints pointtype 7 linecolor rgb "#1f5fa8" title "open", \
    '' using 1:3 with linespoints pointtype 5 linecolor rgb "#c05020" title "one write", \
    '' using 1:4 with linespoints pointtype 9 linecolor rgb "#408040" title "close"
set title "heap of a side, kB for each connection"
plot [0.8:12000] $figures using 1:5 with linespoints pointtype 7 linecolor rgb "#1f5fa8" title "heap"
