# A child whose every byte can be told: numbered lines with its tag on stdout and stderr, at its own rate. It appends its
# tag to a file when it starts (so that a second start shows) and keeps its own count of what it has written in another.
use strict;
use warnings;
use Fcntl;

my ($dir, $tag, $seed, $out, $err, $pad, $batch, $pause_ms, $code) = @ARGV;
sysopen(my $runs, "$dir/runs", O_WRONLY | O_APPEND | O_CREAT) or die "runs: $!";
syswrite($runs, "$tag\n");
sysopen(my $count, "$dir/count.$tag", O_RDWR | O_CREAT) or die "count: $!";

my @handles = (\*STDOUT, \*STDERR);
my @lines = ($out, $err);
my @written = (0, 0);

sub emit {
    my ($k, $text) = @_;
    for (my $at = 0; $at < length $text;) {
        my $n = syswrite($handles[$k], $text, length($text) - $at, $at);
        defined $n or exit 99;
        $at += $n;
        $written[$k] += $n;
    }
}

sub note { sysseek($count, 0, 0); syswrite($count, sprintf("%d %d %d\n", @written, $_[0])); }

my $most = $out > $err ? $out : $err;
note(0);
for (my $i = 0; $i < $most; $i += $batch) {
    for my $k (0, 1) {
        my $text = '';
        for (my $n = $i; $n < $i + $batch && $n < $lines[$k]; $n++) {
            $text .= "$tag.$k:$n:" . chr(97 + $n % 26) x (($n * 7919 + $seed * 31 + $k * 17) % $pad) . "\n";
        }
        emit($k, $text);
    }
    note(0);
    select(undef, undef, undef, $pause_ms / 1000) if $pause_ms;
}
note(1);
exit $code;
