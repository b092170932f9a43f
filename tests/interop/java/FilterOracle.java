// What the filter classes of the official broker make of SQL92 expressions.
//
// Run by tests/interop/test_sql_real.py as a single source file, all questions at once:
//   java -cp '<broker jars>/*' FilterOracle.java <questions> <answers>
//
// Questions are lines of fields separated by tabs, texts in hex of UTF-8:
//   sample <name> <value> ...    the properties of a message, asked of by all expressions after it
//   select <expression>          answered by a line: 1 or 0 for each sample, whether it is selected;
//                                "-" if the expression does not parse

import java.io.BufferedWriter;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.HexFormat;
import java.util.List;
import java.util.Map;
import org.apache.rocketmq.broker.filter.MessageEvaluationContext;
import org.apache.rocketmq.filter.FilterFactory;
import org.apache.rocketmq.filter.FilterSpi;
import org.apache.rocketmq.filter.expression.Expression;

public class FilterOracle {
    public static void main(String[] args) throws Exception {
        FilterSpi filters = FilterFactory.INSTANCE.get("SQL92");
        List<MessageEvaluationContext> samples = new ArrayList<>();
        try (BufferedWriter answers = Files.newBufferedWriter(Path.of(args[1]))) {
            for (String line : Files.readAllLines(Path.of(args[0]))) {
                String[] words = line.split("\t", -1);
                if (words[0].equals("sample")) {
                    Map<String, String> properties = new HashMap<>();
                    for (int i = 1; i + 1 < words.length; i += 2) {
                        properties.put(text(words[i]), text(words[i + 1]));
                    }
                    samples.add(new MessageEvaluationContext(properties));
                } else {
                    answers.write(selected(filters, text(words[1]), samples));
                    answers.newLine();
                }
            }
        }
    }

    private static String text(String hex) {
        return new String(HexFormat.of().parseHex(hex), StandardCharsets.UTF_8);
    }

    private static String selected(
        FilterSpi filters, String expression, List<MessageEvaluationContext> samples
    ) {
        Expression compiled;
        try {
            compiled = filters.compile(expression);
        } catch (Throwable error) {
            return "-";
        }
        StringBuilder found = new StringBuilder();
        for (MessageEvaluationContext sample : samples) {
            boolean isSelected;
            try {
                isSelected = Boolean.TRUE.equals(compiled.evaluate(sample));
            } catch (Throwable error) {
                isSelected = false; // as for a broker: it is not sent
            }
            found.append(isSelected ? '1' : '0');
        }
        return found.toString();
    }
}
